# SPDX-License-Identifier: Apache-2.0
"""The static site of a zoo: recipes, records and the indexes of remotes as pages, a JSON API and a feed.

In: recipes, a folder of records, remotes. Out: a folder for any web server. Its pages request nothing from elsewhere,
and all text of others is escaped.
"""
