//! Draws panels of curves as SVG with `plotters`: latency with both axes logarithmic, bandwidth with a linear
//! scale. Used by `plot`.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, DefaultFormatting, KeyPointHint, Ranged, ValueFormatter};
use plotters::element::DashedPathElement;
use plotters::prelude::*;

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

pub struct Panel {
    pub axis: Axis,
    pub curves: Vec<Curve>,
}

/// Distinct for readers with colour-vision deficiency; used again from the start after the last.
const COLORS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
/// Length of dashes and gaps by run; the first run has a solid line.
const DASHES: [Option<(u32, u32)>; 4] = [None, Some((8, 5)), Some((3, 4)), Some((14, 5))];
const TEXT: RGBColor = RGBColor(60, 60, 60);
const GRID: RGBColor = RGBColor(230, 230, 230);

const WIDTH: u32 = 520;
const HEIGHT: u32 = 400;
/// Height added by a line of the legend behind the sixth.
const LEGEND_LINE: usize = 20;
const MAX_TICKS: usize = 8;

struct Scale {
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

impl Scale {
    fn clamp(&self, value: f64) -> f64 {
        if value.is_finite() { value.clamp(self.low, self.high) } else { self.low }
    }

    /// Sizes: ticks at powers of 2, or of 8 or 1024 if these would be too many.
    fn sizes(values: impl Iterator<Item = f64> + Clone) -> Scale {
        let (low, high) = bounds(values, 1.0);
        let (low, high) = if low == high { (low / 2.0, high * 2.0) } else { (low, high) };
        let exponents = low.log2().ceil() as i32..=high.log2().floor() as i32;
        let every = |step: i32| exponents.clone().filter(move |e| e % step == 0);
        let step = [1, 3].into_iter().find(|step| every(*step).count() <= MAX_TICKS).unwrap_or(10);
        Scale { low, high, ticks: every(step).map(|e| 2f64.powi(e)).collect() }
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
            let start = series(steps).rfind(below).unwrap_or(low);
            let end = series(steps).find(above).unwrap_or(high);
            series(steps).filter(|t| (start * 0.999..=end * 1.001).contains(t)).collect::<Vec<f64>>()
        });
        let ticks = if fine.len() <= MAX_TICKS + 5 { fine } else { coarse };
        let (low, high) = (ticks[0], ticks[ticks.len() - 1]);
        let (low, high) = if low == high { (low / 2.0, high * 2.0) } else { (low, high) };
        Scale { low, high, ticks }
    }

    /// Bandwidths: from 0 in steps of 1, 2 or 5 times a power of ten.
    fn bandwidth(values: impl Iterator<Item = f64> + Clone) -> Scale {
        let (_, high) = bounds(values, 1e-6);
        let unit = 10f64.powf((high / MAX_TICKS as f64).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|s| s * unit);
        let step = step.into_iter().find(|s| high / s <= MAX_TICKS as f64).unwrap_or(10.0 * unit);
        let count = (high / step).ceil().max(1.0) as usize;
        let ticks: Vec<f64> = (0..=count).map(|n| n as f64 * step).collect();
        Scale { low: 0.0, high: ticks[count], ticks }
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

/// A linear axis from 0: that of `plotters` does not take ticks and a label formatter together.
struct Linear {
    high: f64,
    ticks: Vec<f64>,
}

impl Ranged for Linear {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        from + (value / self.high * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> std::ops::Range<f64> {
        0.0..self.high
    }
}

type DrawError<DB> = DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>;

pub fn draw(panels: &[Panel]) -> Result<String, String> {
    let legend = panels.iter().map(|panel| panel.curves.len()).max().unwrap_or(0);
    // A long legend makes the picture higher instead of hiding curves.
    let height = HEIGHT + (LEGEND_LINE * legend.saturating_sub(6)) as u32;
    let mut text = String::new();
    let root = SVGBackend::with_string(&mut text, (WIDTH * panels.len() as u32, height)).into_drawing_area();
    let drawn = root.fill(&WHITE).and_then(|()| {
        let areas = root.split_evenly((1, panels.len()));
        areas.iter().zip(panels).try_for_each(|(area, panel)| match panel.axis {
            Axis::Latency => {
                let scale = Scale::latency(panel.values());
                let axis = (scale.low..scale.high).log_scale().with_key_points(scale.ticks.clone());
                draw_panel(area, panel, axis, &scale)
            }
            Axis::Bandwidth => {
                // The legend stands above the curves.
                let legend = (LEGEND_LINE * panel.curves.len() + 16) as f64 / f64::from(height - 96);
                let room = 1.0 / (1.0 - legend.min(0.5));
                let scale = Scale::bandwidth(panel.values().map(|value| value * room));
                draw_panel(area, panel, Linear { high: scale.high, ticks: scale.ticks.clone() }, &scale)
            }
        })?;
        root.present()
    });
    drop(root);
    drawn.map(|()| text).map_err(|e| e.to_string())
}

impl Panel {
    fn values(&self) -> impl Iterator<Item = f64> + Clone {
        self.curves.iter().flat_map(|curve| curve.points.iter().map(|p| p.1))
    }

    fn titles(&self) -> (&'static str, &'static str) {
        match self.axis {
            Axis::Latency => ("Latency, µs", "lower is better"),
            Axis::Bandwidth => ("Bandwidth, GB/s", "higher is better"),
        }
    }
}

fn draw_panel<DB: DrawingBackend, Y>(
    area: &DrawingArea<DB, Shift>,
    panel: &Panel,
    y_axis: Y,
    y_scale: &Scale,
) -> Result<(), DrawError<DB>>
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    use plotters::style::text_anchor::{HPos, Pos, VPos};
    let x_scale = Scale::sizes(panel.curves.iter().flat_map(|curve| curve.points.iter().map(|p| p.0)));
    let x_axis = (x_scale.low..x_scale.high).log_scale().base(2.0).with_key_points(x_scale.ticks.clone());
    let mut chart = ChartBuilder::on(area)
        .margin_top(44)
        .margin_right(24)
        .margin_bottom(8)
        .x_label_area_size(44)
        .y_label_area_size(58)
        .build_cartesian_2d(x_axis, y_axis)?;
    let font = |size: u32| ("sans-serif", size).into_font();
    let (title, hint) = panel.titles();
    let bold = font(21).style(FontStyle::Bold).color(&TEXT);
    area.draw_text(title, &bold, (58, 14))?;
    let grey = font(16).color(&RGBColor(130, 130, 130)).pos(Pos::new(HPos::Right, VPos::Top));
    area.draw_text(hint, &grey, (WIDTH as i32 - 24, 17))?;
    chart
        .configure_mesh()
        .x_desc("message size")
        .x_label_formatter(&|size| size_label(*size))
        .y_label_formatter(&|value| number_label(*value))
        .label_style(font(16).color(&TEXT))
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(RGBColor(140, 140, 140))
        .draw()?;
    let inside = |(x, y): (f64, f64)| (x_scale.clamp(x), y_scale.clamp(y));
    for curve in &panel.curves {
        let color = COLORS[curve.color % COLORS.len()];
        let points: Vec<(f64, f64)> = curve.points.iter().copied().map(inside).collect();
        let line = color.stroke_width(2);
        let dash = DASHES[curve.dash % DASHES.len()];
        let drawn = match dash {
            None => chart.draw_series(LineSeries::new(points.clone(), line))?,
            Some((dash, gap)) => chart.draw_series(DashedLineSeries::new(points.clone(), dash, gap, line))?,
        };
        drawn.label(curve.label.as_str()).legend(move |(x, y)| {
            let ends = [(x, y), (x + 32, y)];
            match dash {
                None => PathElement::new(ends, line).into_dyn(),
                Some((dash, gap)) => DashedPathElement::new(ends, dash, gap, line).into_dyn(),
            }
        });
        // Filled for the first run, hollow for those beside it.
        let mark = if curve.dash == 0 { color.filled() } else { color.stroke_width(1) };
        chart.draw_series(points.iter().map(|p| Circle::new(*p, 3, mark)))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::Coordinate(10, 8))
        .legend_area_size(38)
        .label_font(font(16).color(&TEXT))
        .background_style(WHITE.mix(0.85))
        .border_style(TRANSPARENT)
        .draw()
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
        let scale = Scale::sizes([8.0].into_iter());
        assert_eq!(ticks(&scale, size_label), ["4 B", "8 B", "16 B"]);
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
    fn values_outside_the_axis_are_drawn_at_its_edge() {
        let points = vec![(0.0, 0.0), (f64::NAN, f64::INFINITY), (8.0, 1.0)];
        for axis in [Axis::Latency, Axis::Bandwidth] {
            let curve = Curve { label: "a < b & c".to_owned(), color: 7, dash: 5, points: points.clone() };
            let svg = draw(&[Panel { axis, curves: vec![curve] }]).unwrap();
            assert!(svg.contains("a &lt; b &amp; c"), "{svg}");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
