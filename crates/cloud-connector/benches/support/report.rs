//! Prints measurements and their performance goals as a table, and writes them to a JSON file.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// A performance goal: the limit that a measured value must meet. In the JSON file, the key of the
/// goal is `target`.
#[derive(Clone, Copy)]
pub enum Goal {
    AtLeast(f64),
    AtMost(f64),
    /// The measurement has no goal. The value is only reported.
    None,
}

/// A measured value and its performance goal.
pub struct Measurement {
    pub name: String,
    /// The measured numbers from which `value` was calculated, or a note about the measurement.
    pub details: String,
    /// The measured ratio, or the measured absolute value in `unit`.
    pub value: f64,
    /// Unit of `value`. Empty if the value is a ratio.
    pub unit: &'static str,
    pub goal: Goal,
}

impl Measurement {
    /// Creates a measurement of a process's peak memory.
    pub fn peak_memory(name: &str, value_mib: f64, max_mib: f64) -> Self {
        Self {
            name: name.to_owned(),
            details: "VmHWM".to_owned(),
            value: value_mib,
            unit: "MiB",
            goal: Goal::AtMost(max_mib),
        }
    }

    pub fn meets_goal(&self) -> bool {
        match self.goal {
            Goal::AtLeast(min) => self.value >= min,
            Goal::AtMost(max) => self.value <= max,
            Goal::None => true,
        }
    }

    fn result_text(&self) -> &'static str {
        match self.goal {
            Goal::None => "",
            _ if self.meets_goal() => "met",
            _ => "missed",
        }
    }

    fn goal_text(&self) -> String {
        match self.goal {
            Goal::AtLeast(min) => format!("≥ {min}"),
            Goal::AtMost(max) => format!("≤ {max}"),
            Goal::None => String::new(),
        }
    }

    fn value_text(&self) -> String {
        if self.unit.is_empty() {
            format!("{:.2}", self.value)
        } else {
            format!("{:.1} {}", self.value, self.unit)
        }
    }
}

pub fn print_table(measurements: &[Measurement]) {
    let column_width = |column: fn(&Measurement) -> String| {
        let widths = measurements.iter().map(|row| column(row).chars().count());
        widths.max().unwrap_or(0)
    };
    let name_width = column_width(|row| row.name.clone());
    let value_width = column_width(Measurement::value_text);
    for row in measurements {
        println!(
            "{:<name_width$}  {:>value_width$}  {:<8} {:<6}  {}",
            row.name,
            row.value_text(),
            row.goal_text(),
            row.result_text(),
            row.details
        );
    }
}

/// Writes the measurements to a JSON file that maps names to measurements. The file keeps the
/// measurements with other names, because an earlier run may have measured other parts of the
/// benchmark.
pub fn write_json(measurements: &[Measurement], path: &Path) -> Result<()> {
    let old_bytes = std::fs::read(path).ok();
    let old_json = old_bytes.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    let mut entries = match old_json {
        Some(Value::Object(entries)) => entries,
        _ => serde_json::Map::new(),
    };
    for measurement in measurements {
        let entry = json!({
            "value": (measurement.value * 1000.0).round() / 1000.0,
            "unit": measurement.unit,
            "target": measurement.goal_text(),
            "result": measurement.result_text(),
            "measured": measurement.details,
        });
        entries.insert(measurement.name.clone(), entry);
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let text = serde_json::to_string_pretty(&entries)? + "\n";
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Returns the element of `values` that is nearest to the quantile (0 to 1). Returns NaN if
/// `values` is empty.
pub fn quantile(values: &[f64], quantile: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last_index = sorted.len().saturating_sub(1);
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the index is between 0 and `last_index`"
    )]
    let index = (last_index as f64 * quantile).round() as usize;
    sorted.get(index).copied().unwrap_or(f64::NAN)
}
