"""Figures of the site: one module a technique, drawn from traces with Altair.

`api` says what a figure is, `theme` how it looks, `build` draws all figures of a site and writes
them, `fence` puts one on a page.
"""
