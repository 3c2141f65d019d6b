"""The HTTP interface of the catalog: routes, their document, and the bodies that they read and show."""
