//! Draws a line plot as SVG. The plot shows the rows per second for each number of known clients.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};

const PLOT_WIDTH: f64 = 640.0;
const PLOT_HEIGHT: f64 = 320.0;
const LEFT_MARGIN: f64 = 80.0;
const BOTTOM_MARGIN: f64 = 50.0;
/// Width of the margin at the top and of the margin at the right side.
const TOP_AND_RIGHT_MARGIN: f64 = 30.0;
/// Horizontal space before the first point and after the last point. The labels of these points
/// need the space.
const SIDE_SPACE: f64 = 45.0;

/// Writes an SVG file with a plot. Each point consists of the number of known clients and the rows
/// per second. The horizontal axis is logarithmic.
pub fn write_svg(path: &Path, points: &[(usize, f64)]) -> Result<()> {
    let max_rate = points.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let grid_step = grid_step(max_rate);
    let top_rate = (max_rate / grid_step).ceil() * grid_step;
    let log_clients: Vec<f64> = points
        .iter()
        .map(|(clients, _)| (*clients as f64).log10())
        .collect();
    let first_log = *log_clients.first().context("no points to plot")?;
    let last_log = *log_clients.last().context("no points to plot")?;
    let inner_width = PLOT_WIDTH - LEFT_MARGIN - TOP_AND_RIGHT_MARGIN - 2.0 * SIDE_SPACE;
    let x = |log: f64| {
        LEFT_MARGIN + SIDE_SPACE + (log - first_log) / (last_log - first_log) * inner_width
    };
    let inner_height = PLOT_HEIGHT - BOTTOM_MARGIN - TOP_AND_RIGHT_MARGIN;
    let y = |rate: f64| PLOT_HEIGHT - BOTTOM_MARGIN - rate / top_rate * inner_height;

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {PLOT_WIDTH} {PLOT_HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{PLOT_WIDTH}\" height=\"{PLOT_HEIGHT}\" fill=\"white\"/>\n"
    );
    let mut rate = 0.0;
    while rate <= top_rate {
        let y = y(rate);
        writeln!(
            svg,
            "<line x1=\"{LEFT_MARGIN}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            PLOT_WIDTH - TOP_AND_RIGHT_MARGIN,
            LEFT_MARGIN - 8.0,
            y + 4.0,
            with_thousands_separators(rate)
        )?;
        rate += grid_step;
    }
    let coordinates: Vec<String> = points
        .iter()
        .zip(&log_clients)
        .map(|((_, rate), log)| format!("{:.1},{:.1}", x(*log), y(*rate)))
        .collect();
    writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"#06c\" stroke-width=\"2\"/>",
        coordinates.join(" ")
    )?;
    for ((clients, rate), log) in points.iter().zip(&log_clients) {
        let (x, y) = (x(*log), y(*rate));
        writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"#06c\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            y - 10.0,
            with_thousands_separators(*rate),
            PLOT_HEIGHT - BOTTOM_MARGIN + 20.0,
            with_thousands_separators(*clients as f64)
        )?;
    }
    writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">known clients</text>\
         <text x=\"{LEFT_MARGIN}\" y=\"18\">rows/s that two writers update</text>\n</svg>",
        f64::midpoint(LEFT_MARGIN, PLOT_WIDTH),
        PLOT_HEIGHT - 8.0
    )?;
    std::fs::write(path, svg).with_context(|| path.display().to_string())
}

/// Formats a number with separators, for example `1,000,000`.
pub fn with_thousands_separators(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns the distance between two grid lines. The distance starts as a power of ten, and doubles
/// until at most six grid lines are necessary to reach `max_rate`.
fn grid_step(max_rate: f64) -> f64 {
    let mut step = 10_f64.powf((max_rate / 5.0).log10().floor());
    while max_rate / step > 6.0 {
        step *= 2.0;
    }
    step
}
