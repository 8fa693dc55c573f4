//! Draws a plot as SVG. It shows the rows per second for each number of known clients, with one line for
//! each kind of message.

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
const SIDE_SPACE: f64 = 70.0;

/// Colors of the lines. They differ in brightness, too.
const COLORS: [&str; 3] = ["#06c", "#c40", "#083"];

/// A line of the plot.
pub struct Series {
    /// Label at the first point.
    pub name: String,
    /// Numbers of known clients, in ascending order, each with the rows per second.
    pub points: Vec<(usize, f64)>,
}

/// Converts values to positions.
struct Scale {
    first_log: f64,
    last_log: f64,
    top_rate: f64,
}

impl Scale {
    fn x(&self, clients: usize) -> f64 {
        let inner_width = PLOT_WIDTH - LEFT_MARGIN - TOP_AND_RIGHT_MARGIN - 2.0 * SIDE_SPACE;
        let position = (log10(clients) - self.first_log) / (self.last_log - self.first_log);
        LEFT_MARGIN + SIDE_SPACE + position * inner_width
    }

    fn y(&self, rate: f64) -> f64 {
        let inner_height = PLOT_HEIGHT - BOTTOM_MARGIN - TOP_AND_RIGHT_MARGIN;
        PLOT_HEIGHT - BOTTOM_MARGIN - rate / self.top_rate * inner_height
    }
}

fn log10(clients: usize) -> f64 {
    (clients as f64).log10()
}

/// Writes an SVG file with a plot. All series have the same numbers of known clients. The horizontal
/// axis is logarithmic.
pub fn write_svg(path: &Path, series: &[Series]) -> Result<()> {
    let rates = series.iter().flat_map(|series| &series.points);
    let max_rate = rates.map(|(_, rate)| *rate).fold(0.0, f64::max);
    let grid_step = grid_step(max_rate);
    let sizes = series.first().context("no series to plot")?.points.iter();
    let sizes: Vec<usize> = sizes.map(|(clients, _)| *clients).collect();
    let scale = Scale {
        first_log: log10(*sizes.first().context("no points to plot")?),
        last_log: log10(*sizes.last().context("no points to plot")?),
        top_rate: (max_rate / grid_step).ceil() * grid_step,
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {PLOT_WIDTH} {PLOT_HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{PLOT_WIDTH}\" height=\"{PLOT_HEIGHT}\" fill=\"white\"/>\n"
    );
    draw_grid(&mut svg, &scale, grid_step, &sizes)?;
    for (series, color) in series.iter().zip(COLORS) {
        draw_series(&mut svg, &scale, series, color)?;
    }
    writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">known clients</text>\
         <text x=\"{LEFT_MARGIN}\" y=\"18\">rows/s of two writers</text>\n</svg>",
        f64::midpoint(LEFT_MARGIN, PLOT_WIDTH),
        PLOT_HEIGHT - 8.0
    )?;
    std::fs::write(path, svg).with_context(|| path.display().to_string())
}

fn draw_grid(svg: &mut String, scale: &Scale, grid_step: f64, sizes: &[usize]) -> Result<()> {
    let mut rate = 0.0;
    while rate <= scale.top_rate {
        let y = scale.y(rate);
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
    for clients in sizes {
        writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            scale.x(*clients),
            PLOT_HEIGHT - BOTTOM_MARGIN + 20.0,
            with_thousands_separators(*clients as f64)
        )?;
    }
    Ok(())
}

fn draw_series(svg: &mut String, scale: &Scale, series: &Series, color: &str) -> Result<()> {
    let positions = series.points.iter();
    let coordinates: Vec<String> = positions
        .map(|(clients, rate)| format!("{:.1},{:.1}", scale.x(*clients), scale.y(*rate)))
        .collect();
    writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>",
        coordinates.join(" ")
    )?;
    for (index, (clients, rate)) in series.points.iter().enumerate() {
        // The names are at the first points, because the lines come close to each other later.
        let name = if index == 0 { &series.name[..] } else { "" };
        let (x, y) = (scale.x(*clients), scale.y(*rate));
        writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{color}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"{color}\">{name}</text>",
            y - 10.0
        )?;
    }
    Ok(())
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
