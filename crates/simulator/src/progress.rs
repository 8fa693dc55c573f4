//! Shows progress on standard error: a progress bar if standard error is a terminal, otherwise one
//! line every few seconds.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval};

use super::counters::CounterSnapshot;
use super::fleet::Fleet;

const BAR_UPDATE_INTERVAL: Duration = Duration::from_millis(250);
const LINE_PRINT_INTERVAL: Duration = Duration::from_secs(5);
const BAR_TEMPLATE: &str = "{elapsed_precise} [{bar:30}] {pos}/{len} connected{msg}";

pub(super) struct Progress {
    task: JoinHandle<()>,
    bar: Option<ProgressBar>,
}

impl Progress {
    pub fn start(fleet: Arc<Fleet>, clients: u32) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| new_bar(clients));
        let task = tokio::spawn(refresh_forever(fleet, clients, bar.clone()));
        Self { task, bar }
    }

    /// Prints a message above the progress bar.
    pub fn print_message(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => print_line(text),
        }
    }

    /// Stops the progress updates and removes the progress bar.
    pub fn finish(self) {
        self.task.abort();
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

fn new_bar(clients: u32) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(clients.into()), ProgressDrawTarget::stderr());
    match ProgressStyle::with_template(BAR_TEMPLATE) {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}

async fn refresh_forever(fleet: Arc<Fleet>, clients: u32, bar: Option<ProgressBar>) {
    let mut ticks = interval(if bar.is_some() {
        BAR_UPDATE_INTERVAL
    } else {
        LINE_PRINT_INTERVAL
    });
    let (mut previous, mut previous_time) = (fleet.counters.snapshot(), Instant::now());
    // The first tick completes immediately, before there is any progress to show.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let current = fleet.counters.snapshot();
        let rates = format_rates(&previous, &current, previous_time.elapsed());
        if let Some(bar) = &bar {
            bar.set_position(current.connected_clients);
            bar.set_message(rates);
        } else {
            print_line(&format!(
                "{}/{clients} connected{rates}",
                current.connected_clients
            ));
        }
        (previous, previous_time) = (current, Instant::now());
    }
}

/// Prints a line. Write errors are ignored, because a closed standard error must not stop the
/// simulation.
fn print_line(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn format_rates(
    previous: &CounterSnapshot,
    current: &CounterSnapshot,
    elapsed: Duration,
) -> String {
    let per_second = |previous: u64, current: u64| {
        let increase = current.saturating_sub(previous) as f64;
        (increase / elapsed.as_secs_f64().max(0.001)).round()
    };
    format!(
        ", {}/s published, {}/s acknowledged, {} received, {} lost, {} dropped by storm",
        per_second(previous.published_messages, current.published_messages),
        per_second(
            previous.acknowledged_messages,
            current.acknowledged_messages
        ),
        current.received_messages,
        current.connections_lost,
        current.storm_drops,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_and_acknowledged_messages_are_shown_per_second() {
        let current = CounterSnapshot {
            published_messages: 500,
            acknowledged_messages: 250,
            received_messages: 7,
            connections_lost: 1,
            storm_drops: 2,
            ..CounterSnapshot::default()
        };
        assert_eq!(
            format_rates(
                &CounterSnapshot::default(),
                &current,
                Duration::from_millis(500)
            ),
            ", 1000/s published, 500/s acknowledged, 7 received, 1 lost, 2 dropped by storm"
        );
    }

    #[test]
    fn bar_template_is_valid() {
        assert!(ProgressStyle::with_template(BAR_TEMPLATE).is_ok());
    }
}
