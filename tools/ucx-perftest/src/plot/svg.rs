//! Draws panels of curves as SVG: latency over size with both axes logarithmic, bandwidth over size with a
//! linear scale. Used by `plot`. Knows nothing of tests and files.

use std::fmt::Write as _;

/// Curves of one colour belong to one test; those of one dash pattern to one run.
pub struct Curve {
    pub label: String,
    pub color: usize,
    pub dash: usize,
    /// Message size in bytes, and µs or GB/s; ascending.
    pub points: Vec<(f64, f64)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// Microseconds, logarithmic.
    Latency,
    /// 10^9 bytes per second, linear from 0.
    Bandwidth,
}

/// One diagram.
pub struct Panel {
    pub axis: Axis,
    pub curves: Vec<Curve>,
}

/// Distinct for readers with colour-vision deficiency; used again from the start after the last.
const COLORS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
const DASHES: [&str; 4] = ["", "7 4", "2 3", "9 3 2 3"];

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 400.0;
/// Space around the diagram: left, top, right, bottom.
const MARGINS: [f64; 4] = [58.0, 44.0, 22.0, 52.0];
/// Height of a line of the legend.
const LEGEND_LINE: f64 = 19.0;
const MAX_TICKS: usize = 8;

/// A range of values, and where its ticks are.
struct Scale {
    low: f64,
    high: f64,
    is_log: bool,
    ticks: Vec<f64>,
}

impl Scale {
    /// Where a value lies: 0 at the low end, 1 at the high end.
    fn position(&self, value: f64) -> f64 {
        let map = |v: f64| if self.is_log { v.ln() } else { v };
        let value = if value.is_finite() { value } else { self.low };
        let span = map(self.high) - map(self.low);
        ((map(value.clamp(self.low, self.high)) - map(self.low)) / span).clamp(0.0, 1.0)
    }

    /// Sizes: a tick at every power of two, or at every power of 4, 8, ... if these would be too many.
    fn sizes(values: impl Iterator<Item = f64> + Clone) -> Scale {
        let (low, high) = bounds(values, 1.0);
        let (low, high) = if low == high { (low / 2.0, high * 2.0) } else { (low, high) };
        let exponents = low.log2().ceil() as i32..=high.log2().floor() as i32;
        let every = |step: i32| exponents.clone().filter(move |e| e % step == 0);
        let step = (1..).find(|step| every(*step).count() <= MAX_TICKS).unwrap_or(1);
        Scale { low, high, is_log: true, ticks: every(step).map(|e| 2f64.powi(e)).collect() }
    }

    /// Times: ticks at 1, 2 and 5 of each decade, or at decades alone if these would be too many.
    fn latency(values: impl Iterator<Item = f64> + Clone) -> Scale {
        let (low, high) = bounds(values, 1e-3);
        let series = |steps: &'static [f64]| {
            let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
            decades.flat_map(move |d| steps.iter().map(move |s| s * 10f64.powi(d)))
        };
        let below = |t: &f64| *t <= low * 1.001;
        let above = |t: &f64| *t >= high * 0.999;
        let [fine, coarse] = [&[1.0, 2.0, 5.0][..], &[1.0]].map(|steps| {
            let start = series(steps).filter(below).last().unwrap_or(low);
            let end = series(steps).find(above).unwrap_or(high);
            series(steps).filter(|t| (start * 0.999..=end * 1.001).contains(t)).collect::<Vec<f64>>()
        });
        let ticks = if fine.len() <= MAX_TICKS + 5 { fine } else { coarse };
        let (low, high) = (ticks[0], ticks[ticks.len() - 1]);
        let (low, high) = if low == high { (low / 2.0, high * 2.0) } else { (low, high) };
        Scale { low, high, is_log: true, ticks }
    }

    /// Bandwidths: from 0 in steps of 1, 2 or 5 times a power of ten.
    fn bandwidth(values: impl Iterator<Item = f64> + Clone) -> Scale {
        let (_, high) = bounds(values, 1e-6);
        let unit = 10f64.powf((high / MAX_TICKS as f64).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|s| s * unit);
        let step = step.into_iter().find(|s| high / s <= MAX_TICKS as f64).unwrap_or(10.0 * unit);
        let count = (high / step).ceil().max(1.0) as usize;
        let ticks: Vec<f64> = (0..=count).map(|n| n as f64 * step).collect();
        Scale { low: 0.0, high: ticks[count], is_log: false, ticks }
    }
}

/// Least and greatest value; what is smaller than `least`, or no number, counts as `least`.
fn bounds(values: impl Iterator<Item = f64>, least: f64) -> (f64, f64) {
    let clean = values.map(|v| if v.is_finite() { v.max(least) } else { least });
    let (low, high) = clean.fold((f64::INFINITY, 0.0), |(l, h): (f64, f64), v| (l.min(v), h.max(v)));
    if low <= high { (low, high) } else { (least, least) }
}

/// A size as people read it: `8 B`, `1 KiB`, `4 MiB`.
fn size_label(bytes: f64) -> String {
    let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.iter().find(|(unit, _)| bytes >= *unit as f64) {
        Some((unit, name)) => format!("{} {name}", bytes / *unit as f64),
        None => format!("{bytes} B"),
    }
}

/// A tick's number without digits that say nothing: `0.05`, `2`, `1000`.
fn number_label(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escaped(text: &str) -> String {
    let printable = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
    printable.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The whole picture, panels side by side.
pub fn draw(panels: &[Panel]) -> String {
    let legend = panels.iter().map(|panel| panel.curves.len()).max().unwrap_or(0);
    // A long legend makes the picture higher instead of hiding curves.
    let height = HEIGHT + LEGEND_LINE * legend.saturating_sub(6) as f64;
    let width = WIDTH * panels.len() as f64;
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>"
    );
    for (n, panel) in panels.iter().enumerate() {
        let _ = draw_panel(&mut out, panel, WIDTH * n as f64, height);
    }
    out + "</svg>\n"
}

fn draw_panel(out: &mut String, panel: &Panel, offset: f64, height: f64) -> std::fmt::Result {
    let [left, top, right, bottom] = MARGINS;
    let points = || panel.curves.iter().flat_map(|curve| curve.points.iter().copied());
    let sizes = Scale::sizes(points().map(|p| p.0));
    let (title, hint, values) = match panel.axis {
        Axis::Latency => ("Latency, µs", "lower is better", Scale::latency(points().map(|p| p.1))),
        Axis::Bandwidth => ("Bandwidth, GB/s", "higher is better", Scale::bandwidth(points().map(|p| p.1))),
    };
    let (x0, x1, y0, y1) = (offset + left, offset + WIDTH - right, height - bottom, top);
    let x = |size: f64| x0 + sizes.position(size) * (x1 - x0);
    let y = |value: f64| y0 - values.position(value) * (y0 - y1);

    writeln!(
        out,
        "<text x=\"{x0}\" y=\"26\" font-size=\"16\" font-weight=\"bold\" fill=\"#222222\">{title}</text>"
    )?;
    writeln!(out, "<text x=\"{x1}\" y=\"26\" text-anchor=\"end\" fill=\"#777777\">{hint}</text>")?;
    for tick in &sizes.ticks {
        let (at, label) = (x(*tick), size_label(*tick));
        writeln!(out, "<path d=\"M{at:.1} {y1}V{y0}\" stroke=\"#e6e6e6\"/>")?;
        let below = y0 + 18.0;
        writeln!(
            out,
            "<text x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\" fill=\"#444444\">{label}</text>"
        )?;
    }
    for tick in &values.ticks {
        let (at, label) = (y(*tick), number_label(*tick));
        writeln!(out, "<path d=\"M{x0} {at:.1}H{x1}\" stroke=\"#e6e6e6\"/>")?;
        let (beside, middle) = (x0 - 8.0, at + 4.5);
        writeln!(
            out,
            "<text x=\"{beside}\" y=\"{middle:.1}\" text-anchor=\"end\" fill=\"#444444\">{label}</text>"
        )?;
    }
    writeln!(out, "<path d=\"M{x0} {y1}V{y0}H{x1}\" fill=\"none\" stroke=\"#888888\"/>")?;
    let (center, under) = ((x0 + x1) / 2.0, height - 12.0);
    writeln!(
        out,
        "<text x=\"{center}\" y=\"{under}\" text-anchor=\"middle\" fill=\"#444444\">message size</text>"
    )?;

    for curve in &panel.curves {
        let style = style(curve);
        let color = COLORS[curve.color % COLORS.len()];
        if let [first, rest @ ..] = &curve.points[..] {
            write!(out, "<path fill=\"none\" {style} d=\"M{:.1} {:.1}", x(first.0), y(first.1))?;
            rest.iter().try_for_each(|p| write!(out, "L{:.1} {:.1}", x(p.0), y(p.1)))?;
            writeln!(out, "\"/>")?;
        }
        // Filled for the first run, hollow for those beside it.
        let fill = if curve.dash == 0 { color } else { "#ffffff" };
        for p in &curve.points {
            let (cx, cy) = (x(p.0), y(p.1));
            writeln!(
                out,
                "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"2.8\" fill=\"{fill}\" stroke=\"{color}\" stroke-width=\"1.5\"/>"
            )?;
        }
    }
    draw_legend(out, &panel.curves, x0 + 12.0, y1 + 10.0)
}

fn style(curve: &Curve) -> String {
    let color = COLORS[curve.color % COLORS.len()];
    match DASHES[curve.dash % DASHES.len()] {
        "" => format!("stroke=\"{color}\" stroke-width=\"2.2\""),
        dashes => format!("stroke=\"{color}\" stroke-width=\"2.2\" stroke-dasharray=\"{dashes}\""),
    }
}

fn draw_legend(out: &mut String, curves: &[Curve], x: f64, y: f64) -> std::fmt::Result {
    let longest = curves.iter().map(|curve| curve.label.chars().count()).max().unwrap_or(0);
    let (width, height) = (46.0 + 6.9 * longest as f64, LEGEND_LINE * curves.len() as f64 + 6.0);
    writeln!(
        out,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width:.0}\" height=\"{height}\" rx=\"3\" fill=\"#ffffff\" fill-opacity=\"0.85\"/>"
    )?;
    for (n, curve) in curves.iter().enumerate() {
        let line = y + LEGEND_LINE * (n as f64 + 0.65);
        let (from, to, text) = (x + 4.0, x + 34.0, x + 42.0);
        writeln!(out, "<path d=\"M{from} {line:.1}H{to}\" {}/>", style(curve))?;
        let base = line + 4.5;
        writeln!(
            out,
            "<text x=\"{text}\" y=\"{base:.1}\" fill=\"#222222\">{}</text>",
            escaped(&curve.label)
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(scale: &Scale, label: fn(f64) -> String) -> Vec<String> {
        scale.ticks.iter().map(|t| label(*t)).collect()
    }

    #[test]
    fn sizes_have_ticks_at_powers_of_two() {
        let scale = Scale::sizes([8.0, 4194304.0].into_iter());
        let want = ["8 B", "64 B", "512 B", "4 KiB", "32 KiB", "256 KiB", "2 MiB"];
        assert_eq!(ticks(&scale, size_label), want);
        assert_eq!((scale.position(8.0), scale.position(4194304.0)), (0.0, 1.0));
        let scale = Scale::sizes([8.0].into_iter());
        assert_eq!(ticks(&scale, size_label), ["4 B", "8 B", "16 B"]);
        assert_eq!(scale.position(8.0), 0.5);
    }

    #[test]
    fn times_have_ticks_of_the_1_2_5_series_or_decades() {
        let scale = Scale::latency([0.3, 14.0].into_iter());
        assert_eq!(ticks(&scale, number_label), ["0.2", "0.5", "1", "2", "5", "10", "20"]);
        let scale = Scale::latency([0.3, 140_000.0].into_iter());
        assert_eq!(ticks(&scale, number_label)[..3], ["0.1", "1", "10"]);
        assert!(scale.low <= 0.3 && scale.high >= 140_000.0);
    }

    #[test]
    fn bandwidths_have_few_round_ticks_from_0() {
        let scale = Scale::bandwidth([0.01, 17.3].into_iter());
        assert_eq!(ticks(&scale, number_label), ["0", "5", "10", "15", "20"]);
        let scale = Scale::bandwidth([0.01, 0.05].into_iter());
        assert_eq!(ticks(&scale, number_label), ["0", "0.01", "0.02", "0.03", "0.04", "0.05"]);
    }

    #[test]
    fn odd_values_are_drawn_at_the_edge() {
        let points = vec![(0.0, 0.0), (f64::NAN, f64::INFINITY), (8.0, 1.0)];
        let label = "a < b & \u{1b}[2J".to_owned();
        for axis in [Axis::Latency, Axis::Bandwidth] {
            let curve = Curve { label: label.clone(), color: 7, dash: 5, points: points.clone() };
            let svg = draw(&[Panel { axis, curves: vec![curve] }]);
            assert!(
                svg.contains("a &lt; b &amp;  [2J") && !svg.contains("NaN") && !svg.contains("inf"),
                "{svg}"
            );
        }
        assert!(draw(&[]).starts_with("<svg "));
    }
}
