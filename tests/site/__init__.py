"""Tests of the site: fence, figures' machinery, pages, and what a build writes."""
