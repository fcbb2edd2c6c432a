"""A service that makes reports: reports.web takes orders, reports.tasks makes them."""
