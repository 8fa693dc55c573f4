//! The summary that `simulate` prints at the end, as text or JSON.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::counters::{CounterSnapshot, Counters};
use super::histogram::Histogram;

#[derive(Debug, Serialize)]
pub(super) struct Summary {
    duration_seconds: f64,
    #[serde(rename = "clients")]
    client_count: u32,
    #[serde(rename = "peak_connected")]
    peak_connected_clients: u64,
    #[serde(rename = "connects")]
    successful_connects: u64,
    /// Connect attempts that the broker rejected or throttled, or that did not reach the broker.
    connect_failures: u64,
    /// Connections closed by the broker or the network.
    connections_lost: u64,
    /// Connections that the simulator dropped because of `--storm`.
    storm_drops: u64,
    /// Clients that published an offline message and disconnected at the end of the simulation.
    clean_disconnects: u64,
    /// Number of published messages with QoS 1.
    #[serde(rename = "published")]
    published_messages: u64,
    /// Number of messages with QoS 1 for which the broker sent a PUBACK.
    #[serde(rename = "acknowledged")]
    acknowledged_messages: u64,
    /// Number of published heartbeats, which have QoS 0.
    heartbeats: u64,
    /// Number of messages that the clients received.
    #[serde(rename = "received")]
    received_messages: u64,
    subscriptions_rejected: u64,
    handshakes_rejected: u64,
    /// Milliseconds from a connect attempt to its CONNACK.
    connect_ms: Option<Percentiles>,
    /// Milliseconds from a PUBLISH to its PUBACK.
    publish_ms: Option<Percentiles>,
    last_error: Option<String>,
}

#[derive(Debug, Serialize)]
struct Percentiles {
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

impl Summary {
    pub fn new(counters: &Counters, client_count: u32, elapsed: Duration) -> Self {
        let counts: CounterSnapshot = counters.snapshot();
        Self {
            duration_seconds: millis(elapsed).round() / 1000.0,
            client_count,
            peak_connected_clients: counts.peak_connected_clients,
            successful_connects: counts.successful_connects,
            connect_failures: counts.connect_failures,
            connections_lost: counts.connections_lost,
            storm_drops: counts.storm_drops,
            clean_disconnects: counts.clean_disconnects,
            published_messages: counts.published_messages,
            acknowledged_messages: counts.acknowledged_messages,
            heartbeats: counts.heartbeats,
            received_messages: counts.received_messages,
            subscriptions_rejected: counts.rejected_subscriptions,
            handshakes_rejected: counts.rejected_handshakes,
            connect_ms: Percentiles::from_histogram(&counters.connect_times),
            publish_ms: Percentiles::from_histogram(&counters.publish_times),
            last_error: counters.last_error(),
        }
    }

    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    pub fn to_text(&self) -> String {
        let mut text = format!(
            "\n{} client{} ran for {:.1} s\n",
            self.client_count,
            if self.client_count == 1 { "" } else { "s" },
            self.duration_seconds,
        );
        let mut add_line = |label: &str, values: String| {
            let _ = writeln!(text, "  {label:<13}  {values}");
        };
        add_line(
            "connected",
            format!(
                "{} at peak, {} disconnected cleanly at the end",
                self.peak_connected_clients, self.clean_disconnects
            ),
        );
        add_line(
            "connections",
            format!(
                "{} established, {} lost, {} dropped by --storm",
                self.successful_connects, self.connections_lost, self.storm_drops
            ),
        );
        add_line(
            "failures",
            format!(
                "{} connects (rejected, throttled or unreachable), {} subscriptions, {} handshakes",
                self.connect_failures, self.subscriptions_rejected, self.handshakes_rejected
            ),
        );
        add_line(
            "messages",
            format!(
                "{} published, {} acknowledged, {} received, {} heartbeats (QoS 0)",
                self.published_messages,
                self.acknowledged_messages,
                self.received_messages,
                self.heartbeats
            ),
        );
        let timings = [
            ("connect time", &self.connect_ms),
            ("PUBACK time", &self.publish_ms),
        ];
        for (label, percentiles) in timings {
            let values = percentiles
                .as_ref()
                .map_or_else(|| "-".to_owned(), Percentiles::to_text);
            add_line(label, values);
        }
        if let Some(error) = &self.last_error {
            add_line("last error", error.clone());
        }
        text
    }
}

impl Percentiles {
    fn from_histogram(histogram: &Histogram) -> Option<Self> {
        let quantile = |quantile| histogram.quantile(quantile).map(millis);
        Some(Self {
            p50: quantile(0.5)?,
            p90: quantile(0.9)?,
            p99: quantile(0.99)?,
            max: histogram.max().map(millis)?,
        })
    }

    fn to_text(&self) -> String {
        format!(
            "p50 {:.1} ms, p90 {:.1} ms, p99 {:.1} ms, max {:.1} ms",
            self.p50, self.p90, self.p99, self.max
        )
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_text_contain_the_counts_the_times_and_the_last_error() {
        let counters = Counters::default();
        counters.record_connect(Duration::from_millis(20));
        counters.record_connect_failure("connection refused");
        let summary = Summary::new(&counters, 2, Duration::from_secs(3));
        let json: serde_json::Value = serde_json::from_str(&summary.to_json().unwrap()).unwrap();
        assert_eq!(json["clients"], 2);
        assert_eq!(json["duration_seconds"], 3.0);
        assert_eq!(json["peak_connected"], 1);
        assert_eq!(json["connect_failures"], 1);
        assert_eq!(json["connect_ms"]["max"], 20.0);
        assert_eq!(json["publish_ms"], serde_json::Value::Null);
        let text = summary.to_text();
        for line in [
            "2 clients ran for 3.0 s",
            "  connected      1 at peak, 0 disconnected cleanly at the end",
            "  PUBACK time    -",
            "  last error     connection refused",
        ] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
    }
}
