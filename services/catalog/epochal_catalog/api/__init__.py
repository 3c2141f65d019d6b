"""The HTTP interface of the catalog: routes, their OpenAPI document, and the bodies of requests and answers."""
