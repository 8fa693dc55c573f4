//! Totals of a run, for the summary.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::event_check::EventTotals;
use crate::faults::FaultKind;

#[derive(Debug, Default, Clone)]
pub struct Totals {
    pub rounds: u64,
    pub acknowledged_messages: u64,
    pub dead_letters: usize,
    pub connected_clients: usize,
    pub events: EventTotals,
    pub faults: BTreeMap<FaultKind, FaultTotals>,
}

/// Totals of one kind of fault.
#[derive(Debug, Default, Clone, Copy)]
pub struct FaultTotals {
    pub count: u64,
    /// Longest time from the end of a fault until a new message was recorded. Faults may overlap, so
    /// this can include the duration of another fault.
    pub longest_recovery: Duration,
}

impl Totals {
    pub fn count(&self, kind: FaultKind) -> u64 {
        self.faults.get(&kind).map_or(0, |totals| totals.count)
    }

    pub fn add(&mut self, kind: FaultKind, count: u64) {
        if count > 0 {
            self.faults.entry(kind).or_default().count += count;
        }
    }

    pub fn update_longest_recovery(&mut self, kind: FaultKind, recovery: Duration) {
        let totals = self.faults.entry(kind).or_default();
        totals.longest_recovery = totals.longest_recovery.max(recovery);
    }

    /// Returns one line with the number of faults of each kind.
    pub fn fault_counts(&self) -> String {
        let counts = self.faults.iter();
        let counts: Vec<String> = counts
            .map(|(kind, totals)| format!("{kind} {}", totals.count))
            .collect();
        counts.join(", ")
    }

    /// Returns one line per kind of fault.
    pub fn fault_table(&self) -> String {
        let mut table = format!("  {:<20}{:>6}  longest recovery\n", "fault", "count");
        for (kind, totals) in &self.faults {
            let recovery = if *kind == FaultKind::LargeResponse {
                "-".to_owned()
            } else {
                format!("{:.1} s", totals.longest_recovery.as_secs_f64())
            };
            let line = format!("  {:<20}{:>6}  {recovery}\n", kind.as_str(), totals.count);
            table.push_str(&line);
        }
        table
    }
}
