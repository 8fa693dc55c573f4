//! What it came to, at the end.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::counters::{Counters, Counts};
use super::histogram::Histogram;

#[derive(Debug, Serialize)]
pub(super) struct Summary {
    seconds: f64,
    clients: u32,
    connected_peak: u64,
    connects: u64,
    /// Connections that ended without our doing.
    connection_losses: u64,
    /// Connections that a storm dropped.
    connections_cut: u64,
    left_cleanly: u64,
    published: u64,
    acknowledged: u64,
    signs_of_life: u64,
    received: u64,
    refused: Refused,
    connect_ms: Option<Percentiles>,
    publish_ms: Option<Percentiles>,
    last_problem: Option<String>,
}

#[derive(Debug, Serialize)]
struct Refused {
    connections: u64,
    subscriptions: u64,
    handshakes: u64,
}

#[derive(Debug, Serialize)]
struct Percentiles {
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

impl Summary {
    pub fn new(tally: &Counters, clients: u32, took: Duration) -> Self {
        let counts: Counts = tally.counts();
        Self {
            seconds: millis(took).round() / 1000.0,
            clients,
            connected_peak: counts.peak,
            connects: counts.connects,
            connection_losses: counts.lost,
            connections_cut: counts.cut,
            left_cleanly: counts.left,
            published: counts.published,
            acknowledged: counts.acknowledged,
            signs_of_life: counts.signs_of_life,
            received: counts.received,
            refused: Refused {
                connections: counts.not_let_in,
                subscriptions: counts.subscriptions_refused,
                handshakes: counts.handshakes_refused,
            },
            connect_ms: Percentiles::of(&tally.connecting),
            publish_ms: Percentiles::of(&tally.publishing),
            last_problem: tally.last_problem(),
        }
    }

    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    pub fn text(&self) -> String {
        let mut text = format!(
            "\n{} client{} in {:.1} s, at most {} connected at once, {} left cleanly\n",
            self.clients,
            if self.clients == 1 { "" } else { "s" },
            self.seconds,
            self.connected_peak,
            self.left_cleanly
        );
        let mut line = |name: &str, what: String| {
            let _ = writeln!(text, "  {name:<14}{what}");
        };
        line(
            "connections",
            format!(
                "{} made, {} lost, {} dropped by the storm, {} refused or failed",
                self.connects,
                self.connection_losses,
                self.connections_cut,
                self.refused.connections
            ),
        );
        line(
            "messages",
            format!(
                "{} published, {} acknowledged, {} received",
                self.published, self.acknowledged, self.received
            ),
        );
        line(
            "refused",
            format!(
                "{} subscriptions, {} handshakes",
                self.refused.subscriptions, self.refused.handshakes
            ),
        );
        let took = [
            ("connect ms", &self.connect_ms),
            ("publish ms", &self.publish_ms),
        ];
        for (name, found) in took {
            let found = found
                .as_ref()
                .map_or_else(|| "-".to_owned(), Percentiles::text);
            line(name, found);
        }
        if let Some(problem) = &self.last_problem {
            line("last problem", problem.clone());
        }
        text
    }
}

impl Percentiles {
    fn of(histogram: &Histogram) -> Option<Self> {
        let at = |share| histogram.percentile(share).map(millis);
        Some(Self {
            p50: at(0.5)?,
            p90: at(0.9)?,
            p99: at(0.99)?,
            max: histogram.longest().map(millis)?,
        })
    }

    fn text(&self) -> String {
        format!(
            "p50 {:.1}, p90 {:.1}, p99 {:.1}, max {:.1}",
            self.p50, self.p90, self.p99, self.max
        )
    }
}

fn millis(took: Duration) -> f64 {
    took.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_one_object_or_a_few_lines() {
        let tally = Counters::default();
        tally.let_in(Duration::from_millis(20));
        tally.not_let_in("the door is shut");
        let summary = Summary::new(&tally, 2, Duration::from_secs(3));
        let read: serde_json::Value = serde_json::from_str(&summary.json().unwrap()).unwrap();
        assert_eq!(read["clients"], 2);
        assert_eq!(read["connected_peak"], 1);
        assert_eq!(read["refused"]["connections"], 1);
        assert_eq!(read["connect_ms"]["max"], 20.0);
        assert_eq!(read["publish_ms"], serde_json::Value::Null);
        let text = summary.text();
        assert!(text.contains("the door is shut"), "{text}");
    }
}
