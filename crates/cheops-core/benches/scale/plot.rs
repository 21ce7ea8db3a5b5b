//! The numbers as a drawing: plain SVG, in colours that can be read on light and on dark.

use std::fmt::Write as _;

use crate::Measured;

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 56.0;
const TOP: f64 = 48.0;
const INNER_WIDTH: f64 = 270.0;
const INNER_HEIGHT: f64 = 140.0;

struct Panel<'a> {
    title: &'a str,
    across: &'a str,
    labels: Vec<String>,
    lines: Vec<(&'a str, Vec<f64>)>,
}

/// Four panels: what grows with sites on the left, with operations on the right.
pub(crate) fn plot(measured: &[Measured]) -> String {
    let (by_sites, by_operations) = crate::page::series(measured);
    let label = |n: usize| if n < 1_000 { n.to_string() } else { format!("{}k", n / 1_000) };
    let sites = || by_sites.iter().map(|m| label(m.size.sites)).collect();
    let operations = || by_operations.iter().map(|m| label(m.size.operations)).collect();
    let values =
        |of: &[&Measured], what: fn(&Measured) -> f64| of.iter().map(|m| what(m)).collect();
    let push: fn(&Measured) -> f64 = |m| m.per_operation(m.push.messages);
    let repair: fn(&Measured) -> f64 = |m| m.per_operation(m.repair.messages);
    let kilobytes: fn(&Measured) -> f64 = |m| m.memory / 1e3;
    let panels = [
        Panel {
            title: "messages per operation",
            across: "sites",
            labels: sites(),
            lines: vec![("push", values(&by_sites, push)), ("repair", values(&by_sites, repair))],
        },
        Panel {
            title: "messages per operation",
            across: "operations, 1,000 sites",
            labels: operations(),
            lines: vec![
                ("push", values(&by_operations, push)),
                ("repair", values(&by_operations, repair)),
            ],
        },
        Panel {
            title: "seconds to agree after the heal",
            across: "sites",
            labels: sites(),
            lines: vec![
                ("all", values(&by_sites, |m| m.agree[2])),
                ("half", values(&by_sites, |m| m.agree[0])),
            ],
        },
        Panel {
            title: "kilobytes of memory per site",
            across: "operations, 1,000 sites",
            labels: operations(),
            lines: vec![("memory", values(&by_operations, kilobytes))],
        },
    ];
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" font-family="sans-serif" font-size="12">
<title>What many sites cost</title>
<style>
  text {{ fill: #333 }} .axis {{ stroke: #888; fill: none }} .grid {{ stroke: #8884 }}
  .line {{ fill: none; stroke-width: 2 }} .a {{ stroke: #0b6bcb; fill: #0b6bcb }} .b {{ stroke: #c2410c; fill: #c2410c }}
  .line.a, .line.b {{ fill: none }} text.a, text.b {{ stroke: none }}
  @media (prefers-color-scheme: dark) {{
    text {{ fill: #ddd }} .a {{ stroke: #6cb6ff; fill: #6cb6ff }} .b {{ stroke: #f69d50; fill: #f69d50 }}
  }}
</style>
"#,
        2.0 * WIDTH,
        2.0 * HEIGHT
    );
    for (n, panel) in panels.iter().enumerate() {
        let (column, row) = ((n % 2) as f64, (n / 2) as f64);
        let _ = writeln!(svg, r#"<g transform="translate({} {})">"#, column * WIDTH, row * HEIGHT);
        panel.draw(&mut svg);
        svg += "</g>\n";
    }
    svg + "</svg>\n"
}

impl Panel<'_> {
    fn draw(&self, svg: &mut String) {
        let most =
            self.lines.iter().flat_map(|(_, values)| values).fold(0.0, |a: f64, &b| a.max(b));
        let step = nice(most / 4.0);
        let top = (most / step).ceil().max(1.0) * step;
        let x = |n: usize| LEFT + INNER_WIDTH * (n as f64 + 0.5) / self.labels.len() as f64;
        let y = |value: f64| TOP + INNER_HEIGHT * (1.0 - value / top);
        let _ =
            writeln!(svg, r#"<text x="{LEFT}" y="24" font-weight="bold">{}</text>"#, self.title);
        let mut tick = 0.0;
        while tick <= top * 1.001 {
            let at = y(tick);
            let _ = writeln!(
                svg,
                r#"<path class="grid" d="M{LEFT} {at:.1}h{INNER_WIDTH}"/><text x="{}" y="{:.1}" text-anchor="end">{}</text>"#,
                LEFT - 6.0,
                at + 4.0,
                short(tick)
            );
            tick += step;
        }
        let bottom = TOP + INNER_HEIGHT;
        let _ = writeln!(svg, r#"<path class="axis" d="M{LEFT} {TOP}V{bottom}h{INNER_WIDTH}"/>"#);
        for (n, label) in self.labels.iter().enumerate() {
            let _ = writeln!(
                svg,
                r#"<text x="{:.1}" y="{}" text-anchor="middle">{label}</text>"#,
                x(n),
                bottom + 18.0
            );
        }
        let _ = writeln!(
            svg,
            r#"<text x="{}" y="{}" text-anchor="middle">{}</text>"#,
            LEFT + INNER_WIDTH / 2.0,
            bottom + 36.0,
            self.across
        );
        for ((name, values), class) in self.lines.iter().zip(["a", "b"]) {
            let points: Vec<String> = values
                .iter()
                .enumerate()
                .map(|(n, &v)| format!("{:.1},{:.1}", x(n), y(v)))
                .collect();
            let _ =
                writeln!(svg, r#"<polyline class="line {class}" points="{}"/>"#, points.join(" "));
            for point in &points {
                let (px, py) = point.split_once(',').unwrap_or_default();
                let _ = writeln!(svg, r#"<circle class="{class}" cx="{px}" cy="{py}" r="3"/>"#);
            }
            if let Some(&last) = values.last() {
                let _ = writeln!(
                    svg,
                    r#"<text class="{class}" x="{:.1}" y="{:.1}" text-anchor="end">{name}</text>"#,
                    LEFT + INNER_WIDTH,
                    y(last) - 7.0
                );
            }
        }
    }
}

/// The nearest round number from here on.
fn nice(value: f64) -> f64 {
    let power = 10_f64.powf(value.max(1e-9).log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|&n| n >= value).unwrap_or(value)
}

fn short(value: f64) -> String {
    if value.fract() < 1e-9 { format!("{value:.0}") } else { format!("{value:.1}") }
}
