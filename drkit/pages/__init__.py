"""Self-contained HTML pages: the report of finished runs, with charts and no request to anywhere."""

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit.pages.card import model_card as model_card
    from drkit.pages.card import push_encoder as push_encoder
    from drkit.pages.card import write_model_card as write_model_card
    from drkit.pages.records import RunRecord as RunRecord
    from drkit.pages.records import open_run as open_run
    from drkit.pages.report import ReportOptions as ReportOptions
    from drkit.pages.report import report_page as report_page

lazy_exports(__name__)
