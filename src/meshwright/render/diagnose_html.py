"""A diagnosis as one self-contained HTML file."""

from __future__ import annotations

from meshwright.diagnose.finding import Diagnosis

TEMPLATE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ headline }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
article { border-left: 4px solid #c33; padding: 0 1rem; margin: 1.5rem 0 }
code, small { color: #555 }
</style></head><body>
<h1>{{ headline }}</h1>
<p>verdict: {{ diagnosis.verdict }}; read: {{ diagnosis.read | join(", ") }}</p>
{% for finding in diagnosis.findings %}
<article>
<h2>{{ finding.title }}</h2>
<p><code>{{ finding.code }}</code> confidence {{ finding.confidence }}</p>
<ul>{% for sentence in finding.evidence %}<li>{{ sentence }}</li>{% endfor %}</ul>
<p><b>Remedy.</b> {{ finding.remedy }}</p>
</article>
{% endfor %}
{% if diagnosis.notes %}<h2>Left out</h2><ul>{% for note in diagnosis.notes %}<li><small>{{ note }}</small></li>{% endfor %}</ul>{% endif %}
</body></html>
"""


def diagnosis_html(diagnosis: Diagnosis) -> str:
    """The report; every text is escaped, since names and log lines may hold anything."""
    from jinja2 import Environment

    headline = diagnosis.findings[0].title if diagnosis.findings else "Nothing wrong found"
    return Environment(autoescape=True).from_string(TEMPLATE).render(diagnosis=diagnosis, headline=headline) + "\n"
