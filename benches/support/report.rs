//! Figures and their bars: printed as a table, written as JSON.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// What a figure is held to.
#[derive(Clone, Copy)]
pub enum Bar {
    AtLeast(f64),
    AtMost(f64),
    /// Shown beside the others, and held to nothing.
    None,
}

pub struct Figure {
    pub name: String,
    /// What was measured, in words and numbers.
    pub measured: String,
    /// What is held to the bar: a ratio, or a plain number with its unit.
    pub value: f64,
    pub unit: &'static str,
    pub bar: Bar,
}

impl Figure {
    /// What a process held at most, in MiB.
    pub fn memory(name: &str, value: f64, most: f64) -> Self {
        Self {
            name: name.to_owned(),
            measured: "most that the process held (VmHWM)".to_owned(),
            value,
            unit: "MiB",
            bar: Bar::AtMost(most),
        }
    }

    pub fn is_met(&self) -> bool {
        match self.bar {
            Bar::AtLeast(bar) => self.value >= bar,
            Bar::AtMost(bar) => self.value <= bar,
            Bar::None => true,
        }
    }

    fn verdict(&self) -> &'static str {
        match self.bar {
            Bar::None => "",
            _ if self.is_met() => "ok",
            _ => "MISSED",
        }
    }

    fn bar(&self) -> String {
        match self.bar {
            Bar::AtLeast(bar) => format!("≥ {bar}"),
            Bar::AtMost(bar) => format!("≤ {bar}"),
            Bar::None => String::new(),
        }
    }

    fn value(&self) -> String {
        if self.unit.is_empty() {
            format!("{:.2}", self.value)
        } else {
            format!("{:.1} {}", self.value, self.unit)
        }
    }
}

pub fn show(figures: &[Figure]) {
    let width = |of: fn(&Figure) -> String| {
        let widths = figures.iter().map(|figure| of(figure).chars().count());
        widths.max().unwrap_or(0)
    };
    let (names, values) = (width(|f| f.name.clone()), width(Figure::value));
    for figure in figures {
        println!(
            "{:<names$}  {:>values$}  {:<8} {:<6}  {}",
            figure.name,
            figure.value(),
            figure.bar(),
            figure.verdict(),
            figure.measured
        );
    }
}

/// Adds to what the file holds already: parts may be run one by one.
pub fn write(figures: &[Figure], file: &Path) -> Result<()> {
    let kept = std::fs::read(file).ok();
    let kept = kept.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    let mut all = match kept {
        Some(Value::Object(all)) => all,
        _ => serde_json::Map::new(),
    };
    for figure in figures {
        let value = json!({
            "value": (figure.value * 1000.0).round() / 1000.0,
            "unit": figure.unit,
            "bar": figure.bar(),
            "verdict": figure.verdict(),
            "measured": figure.measured,
        });
        all.insert(figure.name.clone(), value);
    }
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let text = serde_json::to_string_pretty(&all)? + "\n";
    std::fs::write(file, text).with_context(|| file.display().to_string())
}

pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

pub fn quantile(values: &[f64], at: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place in a short list"
    )]
    let place = (last as f64 * at).round() as usize;
    sorted.get(place).copied().unwrap_or(f64::NAN)
}
