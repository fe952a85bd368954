# SPDX-License-Identifier: Apache-2.0
"""The server process: sockets, models, middleware, options and the page, around the endpoints."""
