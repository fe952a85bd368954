# SPDX-License-Identifier: Apache-2.0
"""Files of a site, by path: pages, JSON API, feed and llms.txt.

Every text that is not ours is escaped: by Jinja's autoescape in HTML and XML, and as JSON in data.
"""

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from qeff_zoo import registry
from qeff_zoo.site import builder, plots, words
from qeff_zoo.site.addresses import OWN
from qeff_zoo.site.content import LEVELS, Comparison, Model, Zoo
from qeff_zoo.site.listing import INLINE, SCHEMA_ID, Listing, dump, listing
from qeff_zoo.terminal.printing import human_size
from qeff_zoo.terminal.sanitize import shown

_HERE = Path(__file__).parent
ASSETS = ("site.css", "site.js")
SCHEMA = _HERE / "site.schema.json"
#: Rows, packages and comparisons of one page, and figures of these; the JSON API has all.
_ROWS, _VARIANTS, _COMPARISONS, _FIGURES, _OF_ORGANIZATION = 100, 100, 30, 1000, 2000
_NEWS = 50
_LISTED = 1000  # models in llms.txt
_SIZES = (
    ("0-1", "up to 1 GB"),
    ("1-5", "1 to 5 GB"),
    ("5-20", "5 to 20 GB"),
    ("20-1e9", "over 20 GB"),
)

#: Path in the site, and content.
File = tuple[str, str]


def files(zoo: Zoo) -> Iterator[File]:
    """Yield every file of a site.

    Args:
        zoo: Content of the site.
    """
    pages = _Pages(zoo)
    yield from pages.lists()
    yield from pages.models()
    yield from pages.architectures()
    yield from pages.data()
    for name in ASSETS:
        yield f"{OWN}/{name}", (_HERE / "assets" / name).read_text(encoding="utf-8")
    yield ".nojekyll", ""  # GitHub Pages leaves out folders that begin with `_` otherwise


class _Pages:
    """Pages of one site.

    Args:
        zoo: Content of the site.
    """

    def __init__(self, zoo: Zoo) -> None:
        self._zoo = zoo
        self._listing: Listing = listing(zoo)
        now = datetime.now(UTC)
        self._recipes = {recipe.model_type: recipe for recipe in registry.list_recipes()}
        self._time = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        self._environment = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_finalized,
        )
        self._environment.globals |= {
            "zoo": zoo,
            "version": version("qeff-zoo"),
            "size": lambda value: human_size(value) if value else "",
            "rate": lambda value: "" if value is None else f"{value:,.1f}",
            "figure": words.figure,
            "metric": words.metric,
            "allowed": words.allowed,
            "listed": words.listed,
            "errors": plots.errors,
            "speed": plots.speed,
            "levels": words.LEVEL_WORDS,
            "metrics": words.METRICS,
        }

    def _page(self, path: str, template: str, here: str, **values: Any) -> File:
        root = "../" * path.count("/")
        page = self._environment.get_template(template)
        return path, page.render(root=root, here=here, **values)

    # --- pages ---------------------------------------------------------------------------------

    def lists(self) -> Iterator[File]:
        """Yield the pages that list models and architectures, and the page of explanations."""
        zoo = self._zoo
        small = len(zoo.models) <= INLINE
        yield self._page(
            "index.html",
            "index.html",
            "models",
            shown=zoo.models if small else zoo.models[:_ROWS],
            listing=self._listing.embedded(),
            facets=self._facets(),
        )
        yield self._page(f"{OWN}/about.html", "about.html", "about")
        yield self._page(f"{OWN}/architectures/index.html", "architectures.html", "architectures")
        organizations: dict[str, list[Model]] = defaultdict(list)
        for model in zoo.models:
            organizations[model.page.partition("/")[0]].append(model)
        counts = sorted((name, len(models)) for name, models in organizations.items())
        yield self._page(
            f"{OWN}/organizations.html", "organizations.html", "models", organizations=counts
        )
        for name, models in organizations.items():
            part = models[:_OF_ORGANIZATION]
            yield self._page(
                f"{name}/index.html",
                "organization.html",
                "models",
                name=name,
                models=part,
                hidden=len(models) - len(part),
            )

    def models(self) -> Iterator[File]:
        """Yield the page of each model."""
        for model in self._zoo.models:
            recipe = self._recipes.get(model.architecture)
            yield self._page(
                f"{model.page}.html",
                "model.html",
                "models",
                model=model,
                architecture_page=_architecture_page(model.architecture),
                comparisons=_shown_comparisons(model),
                builder=builder.choices(
                    model.name,
                    hub=model.hub,
                    task=model.task,
                    recipe=recipe,
                    variants=model.variants[:_VARIANTS],
                ),
                most=_VARIANTS,
            )

    def architectures(self) -> Iterator[File]:
        """Yield the page of each architecture."""
        of: dict[str, list[Model]] = defaultdict(list)
        for model in self._zoo.models:
            of[model.architecture].append(model)
        for architecture in self._zoo.architectures:
            yield self._page(
                f"{architecture.page}.html",
                "architecture.html",
                "architectures",
                one=architecture,
                models=of[architecture.name][:_ROWS],
            )

    def _facets(self) -> list[tuple[str, str, list[tuple[str, str]]]]:
        head = self._listing.head

        def same(values: list[str]) -> list[tuple[str, str]]:
            return [(value, value) for value in values if value]

        levels = [(level, f"{level} or more") for level in LEVELS[1:]]
        return [
            ("task", "Task", same(head["tasks"])),
            ("target", "Target", same(head["targets"])),
            ("level", "Proof", [*levels, ("declared", "declared"), ("red", "red")]),
            ("weights", "Precision", same(head["weights"])),
            ("size", "Size", list(_SIZES)),
            ("license", "Licence", same(head["licenses"])),
        ]

    # --- data ----------------------------------------------------------------------------------

    def data(self) -> Iterator[File]:
        """Yield the JSON API, the feed and llms.txt."""
        api = f"{OWN}/api"
        yield f"{api}/schema.json", SCHEMA.read_text(encoding="utf-8")
        yield f"{api}/index.json", dump({**self._listing.head, "generated": self._time})
        for name, content in self._listing.shards.items():
            yield f"{api}/{name}", content
        for model in self._zoo.models:
            document = {"schema": SCHEMA_ID, "level": model.level, **vars(model)}
            yield f"{api}/models/{model.page}.json", dump(document)
        architectures = [
            {"level": architecture.level, **vars(architecture)}
            for architecture in self._zoo.architectures
        ]
        yield (
            f"{api}/architectures.json",
            dump({"schema": SCHEMA_ID, "architectures": architectures}),
        )
        yield self._feed()
        yield self._page("llms.txt", "llms.txt", "", models=self._zoo.models[:_LISTED])

    def _feed(self) -> File:
        news = [
            (variant.finished, model, variant)
            for model in self._zoo.models
            for variant in model.variants
        ]
        newest = sorted(news, key=lambda item: (item[0], item[2].path), reverse=True)[:_NEWS]
        updated = newest[0][0] if newest else self._time
        return self._page("feed.xml", "feed.xml", "", news=newest, updated=updated)


def _finalized(value: Any) -> Any:
    """Show control characters and overrides of direction in a text of others."""
    return shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _architecture_page(model_type: str) -> str:
    return f"{OWN}/architectures/{quote(registry.file_name(model_type))}"


def _shown_comparisons(model: Model) -> list[Comparison]:
    """Return the comparisons of a page: those that failed first, and no more figures than a page may have."""
    ordered = sorted(model.comparisons, key=lambda one: one.passed)[:_COMPARISONS]
    figures = accumulate(len(one.checks) for one in ordered)
    return [
        one
        for number, (one, count) in enumerate(zip(ordered, figures, strict=True))
        if count <= _FIGURES or number == 0
    ]
