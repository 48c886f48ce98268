"""The site: pages, figures, theme."""
