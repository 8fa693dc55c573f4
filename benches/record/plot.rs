//! A plot of a few points, as SVG.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 80.0;
const BELOW: f64 = 50.0;
const MARGIN: f64 = 30.0;
/// Between the sides and the first and last point, so that their labels stand free.
const INSET: f64 = 45.0;

/// Rows a second against the number of clients that are known, on a logarithmic scale below.
pub fn write(file: &Path, points: &[(usize, f64)]) -> Result<()> {
    let most = points.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let step = step(most);
    let top = (most / step).ceil() * step;
    let scale: Vec<f64> = points
        .iter()
        .map(|(known, _)| (*known as f64).log10())
        .collect();
    let (first, last) = (
        scale.first().copied().context("no points")?,
        scale.last().copied().context("no points")?,
    );
    let within = WIDTH - LEFT - MARGIN - 2.0 * INSET;
    let x = |at: f64| LEFT + INSET + (at - first) / (last - first) * within;
    let y = |rate: f64| HEIGHT - BELOW - rate / top * (HEIGHT - BELOW - MARGIN);

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    let mut at = 0.0;
    while at <= top {
        let line = y(at);
        writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{line:.1}\" x2=\"{:.1}\" y2=\"{line:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - MARGIN,
            LEFT - 8.0,
            line + 4.0,
            grouped(at)
        )?;
        at += step;
    }
    let places: Vec<String> = points
        .iter()
        .zip(&scale)
        .map(|((_, rate), at)| format!("{:.1},{:.1}", x(*at), y(*rate)))
        .collect();
    writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"#06c\" stroke-width=\"2\"/>",
        places.join(" ")
    )?;
    for ((known, rate), at) in points.iter().zip(&scale) {
        let (x, y) = (x(*at), y(*rate));
        writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"#06c\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            y - 10.0,
            grouped(*rate),
            HEIGHT - BELOW + 20.0,
            grouped(*known as f64)
        )?;
    }
    writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">known clients</text>\
         <text x=\"{LEFT}\" y=\"18\">rows/s that two writers update</text>\n</svg>",
        f64::midpoint(LEFT, WIDTH),
        HEIGHT - 8.0
    )?;
    std::fs::write(file, svg).with_context(|| file.display().to_string())
}

/// With a comma between thousands.
fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A round number, of which a handful reach the top.
fn step(most: f64) -> f64 {
    let mut step = 10_f64.powf((most / 5.0).log10().floor());
    while most / step > 6.0 {
        step *= 2.0;
    }
    step
}
