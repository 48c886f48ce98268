"""A package of ops with known content, as `kernels` is one: for the tests of the compiler."""
