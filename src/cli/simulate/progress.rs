//! Delivery it is going, on standard error: a bar on a terminal, a line now and then elsewhere.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval};

use super::counters::Counts;
use super::fleet::Fleet;

const BAR_EVERY: Duration = Duration::from_millis(250);
const LINE_EVERY: Duration = Duration::from_secs(5);
const BAR: &str = "{elapsed_precise} [{bar:30}] {pos}/{len} connected{msg}";

pub(super) struct Progress {
    task: JoinHandle<()>,
    bar: Option<ProgressBar>,
}

impl Progress {
    pub fn start(fleet: Arc<Fleet>, clients: u32) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| bar(clients));
        let task = tokio::spawn(show(fleet, clients, bar.clone()));
        Self { task, bar }
    }

    /// Something that happens once.
    pub fn note(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.println(what),
            None => line(what),
        }
    }

    /// Clears the line, so that what follows stands alone.
    pub fn end(self) {
        self.task.abort();
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(clients: u32) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(clients.into()), ProgressDrawTarget::stderr());
    match ProgressStyle::with_template(BAR) {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}

async fn show(fleet: Arc<Fleet>, clients: u32, bar: Option<ProgressBar>) {
    let mut ticks = interval(if bar.is_some() { BAR_EVERY } else { LINE_EVERY });
    let (mut before, mut at) = (fleet.tally.counts(), Instant::now());
    // The first tick is at once, and there is nothing to say yet.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let now = fleet.tally.counts();
        let rates = rates(&before, &now, at.elapsed());
        if let Some(bar) = &bar {
            bar.set_position(now.connected);
            bar.set_message(rates);
        } else {
            line(&format!("{}/{clients} connected{rates}", now.connected));
        }
        (before, at) = (now, Instant::now());
    }
}

/// Whoever read it may be gone.
fn line(what: &str) {
    let _ = writeln!(std::io::stderr(), "{what}");
}

fn rates(before: &Counts, now: &Counts, within: Duration) -> String {
    let rate = |before: u64, now: u64| {
        let grown = now.saturating_sub(before) as f64;
        (grown / within.as_secs_f64().max(0.001)).round()
    };
    format!(
        ", {}/s published, {}/s acknowledged, {} received, {} lost",
        rate(before.published, now.published),
        rate(before.acknowledged, now.acknowledged),
        now.received,
        now.lost + now.cut,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_by_the_second() {
        let now = Counts {
            published: 500,
            acknowledged: 250,
            received: 7,
            lost: 1,
            cut: 2,
            ..Counts::default()
        };
        assert_eq!(
            rates(&Counts::default(), &now, Duration::from_millis(500)),
            ", 1000/s published, 500/s acknowledged, 7 received, 3 lost"
        );
    }

    #[test]
    fn the_bar_is_one_that_can_be_drawn() {
        assert!(ProgressStyle::with_template(BAR).is_ok());
    }
}
