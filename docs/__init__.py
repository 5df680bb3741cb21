"""The site's sources: pages in `en` and `zh`, what they share in `assets`, what builds them in
`hooks`."""
