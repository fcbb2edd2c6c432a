"""The autoscaler: how many workers the work needs, asked again and again, on whatever runs them."""
