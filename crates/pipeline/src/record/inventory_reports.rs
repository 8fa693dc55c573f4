//! Sends reports to inventory after the commit of their batch, so that a slow inventory does not
//! delay recording.
//!
//! A writer queues the reports of a batch after the commit ([`ReportQueue`]). A task of its own sends
//! them ([`ReportTask`]) and passes the delivered reports back to the writer ([`DeliveredReports`]),
//! which stores them with a later batch. Until then, the row of the host is pending. So after a crash,
//! a failed delivery or a full queue, the inventory refresh job reports the host again. See
//! docs/decisions/027-inventory-after-the-commit.md.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use domain::{ClientId, Timestamp};
use integrations::inventory::message::{Host, InventoryMessage};
use integrations::inventory::reporter::{InventoryReporter, ReportOutcome};
use integrations::metrics::{self, SkipReason};
use service::{Admission, Breaker, ByteBudget, ByteReservation, TaskGroup};
use store::{ConnectionUpsert, DeliveredReport};

/// Maximum number of queued reports of a writer.
const MAX_QUEUED_REPORTS: usize = 8192;
/// Maximum size of the queued messages of all writers.
const MAX_QUEUED_BYTES: usize = 8 * 1024 * 1024;
/// Maximum number of reports that are sent at once.
const MAX_REPORTS_PER_REQUEST: usize = 1000;
/// Maximum number of delivered reports in one transaction.
const MAX_DELIVERED_PER_BATCH: usize = 1000;
/// Maximum time between the delivery of a report and the transaction that stores it.
const MAX_STORE_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of delivered reports that wait for a writer. While the database is unavailable, no
/// further reports are sent.
const MAX_WAITING_DELIVERED: usize = 2000;
/// Time between the opening of the breaker and the first probe.
const BREAKER_PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum time for sending the queued reports at shutdown.
const MAX_SHUTDOWN_TIME: Duration = Duration::from_secs(2);

/// The parts of the reporting that all writers share.
pub(super) struct InventoryReporting {
    reporter: InventoryReporter,
    queued_bytes: ByteBudget,
    breaker: Arc<Breaker<ClientId>>,
}

impl InventoryReporting {
    pub fn new(reporter: InventoryReporter) -> Self {
        Self {
            reporter,
            queued_bytes: ByteBudget::new(MAX_QUEUED_BYTES),
            breaker: Arc::new(Breaker::new(
                "inventory",
                BREAKER_PROBE_INTERVAL,
                metrics::set_inventory_breaker_open,
            )),
        }
    }

    /// Creates the queue and the task of one writer.
    pub fn for_writer(&self) -> (ReportQueue, ReportTask, DeliveredReports) {
        let (sender, queue) = mpsc::channel(MAX_QUEUED_REPORTS);
        let (delivered_sender, delivered) = mpsc::channel(MAX_WAITING_DELIVERED);
        let report_queue = ReportQueue {
            reporter: self.reporter.clone(),
            queued_bytes: self.queued_bytes.clone(),
            sender,
        };
        let task = ReportTask {
            reporter: self.reporter.clone(),
            breaker: self.breaker.clone(),
            queue,
            delivered: delivered_sender,
        };
        (report_queue, task, DeliveredReports::new(delivered))
    }
}

/// A report of a host whose row is committed.
struct Report {
    message: InventoryMessage,
    /// What is stored after the delivery.
    delivered: DeliveredReport,
    memory: ByteReservation,
}

/// The sending end of a writer's queue of reports.
pub(super) struct ReportQueue {
    reporter: InventoryReporter,
    queued_bytes: ByteBudget,
    sender: mpsc::Sender<Report>,
}

impl ReportQueue {
    /// Queues the report of a host without waiting. Does nothing if the host is not eligible. If the
    /// queue is full, the report stays pending.
    ///
    /// `upsert` is the host's row, which a batch with the time `row_version` has written.
    pub fn add(&self, host: &Host<'_>, upsert: &ConnectionUpsert, row_version: Timestamp) {
        // Checked first, because building the message is expensive.
        if self.sender.capacity() == 0 {
            metrics::count_skipped_reports(SkipReason::QueueFull, 1);
            return;
        }
        let Some(message) = self.reporter.build_message(host, row_version) else {
            return;
        };
        let report = self.queued_bytes.try_reserve(message.json.len());
        let report = report.map(|memory| Report {
            message,
            delivered: DeliveredReport {
                client_id: upsert.client_id.clone(),
                row_version,
                online_received_at: upsert.received_at.time,
                reported_at: row_version,
            },
            memory,
        });
        let is_queued = report.is_some_and(|report| self.sender.try_send(report).is_ok());
        if !is_queued {
            metrics::count_skipped_reports(SkipReason::QueueFull, 1);
        }
    }
}

/// Sends the reports of one writer.
pub(super) struct ReportTask {
    reporter: InventoryReporter,
    breaker: Arc<Breaker<ClientId>>,
    queue: mpsc::Receiver<Report>,
    delivered: mpsc::Sender<DeliveredReport>,
}

impl ReportTask {
    /// Sends reports until the queue is closed and empty. After `tasks` is cancelled, sends reports
    /// for a short time only; the others stay pending.
    pub async fn run(mut self, tasks: TaskGroup) {
        let shutdown_time = self.reporter.delivery_timeout.min(MAX_SHUTDOWN_TIME);
        let end_of_shutdown = async {
            tasks.cancelled().await;
            tokio::time::sleep(shutdown_time).await;
        };
        tokio::select! {
            () = self.send_queued_reports() => {}
            () = end_of_shutdown => {
                metrics::count_skipped_reports(SkipReason::Shutdown, self.queue.len());
            }
        }
        // Closes the channel of the delivered reports, for which the writer waits.
        drop(self);
        tasks.cancelled().await;
    }

    async fn send_queued_reports(&mut self) {
        let mut reports = Vec::new();
        while self
            .queue
            .recv_many(&mut reports, MAX_REPORTS_PER_REQUEST)
            .await
            > 0
        {
            self.send_if_admitted(std::mem::take(&mut reports)).await;
        }
    }

    async fn send_if_admitted(&self, mut reports: Vec<Report>) {
        let admission = self.breaker.admit();
        let rejected_reports = match admission {
            Admission::Granted => {
                self.send(reports, admission).await;
                return;
            }
            Admission::Rejected => reports,
            Admission::Probe => {
                let other_reports = reports.split_off(1);
                self.send(reports, admission).await;
                if self.breaker.open_duration().is_none() {
                    self.send(other_reports, Admission::Granted).await;
                    return;
                }
                other_reports
            }
        };
        metrics::count_skipped_reports(SkipReason::BreakerOpen, rejected_reports.len());
    }

    async fn send(&self, reports: Vec<Report>, admission: Admission) {
        let mut messages = Vec::with_capacity(reports.len());
        let mut delivered_reports = Vec::with_capacity(reports.len());
        // The memory stays reserved until the messages are sent.
        let mut memory = Vec::with_capacity(reports.len());
        for report in reports {
            messages.push(report.message);
            delivered_reports.push(report.delivered);
            memory.push(report.memory);
        }
        let outcomes = self.reporter.send(messages).await;
        drop(memory);
        for (report, outcome) in delivered_reports.into_iter().zip(outcomes) {
            if outcome == ReportOutcome::Delivered {
                self.breaker.record_success(&report.client_id, admission);
                // `send` fails only if the writer has ended. The row then stays pending.
                let _ = self.delivered.send(report).await;
            } else {
                self.breaker.record_failure(&report.client_id, admission);
            }
        }
    }
}

/// The delivered reports of a writer that are not stored yet.
///
/// They are stored together, because storing them one by one would delay the messages that arrive
/// meanwhile.
pub(super) struct DeliveredReports {
    receiver: mpsc::Receiver<DeliveredReport>,
    /// Reports that were received, or that a failed transaction did not store.
    unstored: Vec<DeliveredReport>,
    /// Time at which the reports must be stored, if there are any.
    due_at: Instant,
}

impl DeliveredReports {
    fn new(receiver: mpsc::Receiver<DeliveredReport>) -> Self {
        Self {
            receiver,
            unstored: Vec::new(),
            due_at: Instant::now(),
        }
    }

    /// Returns the delivered reports of a writer that reports nothing.
    pub fn none() -> Self {
        Self::new(mpsc::channel(1).1)
    }

    /// Receives delivered reports until they are due, or until there are no more. Returns false if there
    /// is nothing to store. Cancel safe.
    pub async fn wait_until_due(&mut self) -> bool {
        while self.unstored.len() < MAX_DELIVERED_PER_BATCH {
            tokio::select! {
                report = self.receiver.recv() => match report {
                    Some(report) => self.add(report),
                    None => return !self.unstored.is_empty(),
                },
                () = sleep_until(self.due_at), if !self.unstored.is_empty() => break,
            }
        }
        true
    }

    /// Returns the delivered reports for one transaction, without waiting. Returns nothing if they are
    /// not due.
    pub fn take_due(&mut self) -> Vec<DeliveredReport> {
        while self.unstored.len() < MAX_DELIVERED_PER_BATCH
            && let Ok(report) = self.receiver.try_recv()
        {
            self.add(report);
        }
        let is_due =
            self.unstored.len() >= MAX_DELIVERED_PER_BATCH || self.due_at <= Instant::now();
        if is_due { self.take() } else { Vec::new() }
    }

    /// Returns the delivered reports that [`Self::wait_until_due`] has received.
    pub fn take(&mut self) -> Vec<DeliveredReport> {
        std::mem::take(&mut self.unstored)
    }

    /// Adds reports whose transaction failed, for a later transaction. Drops reports above the limit;
    /// their hosts stay pending.
    pub fn restore(&mut self, reports: Vec<DeliveredReport>) {
        for report in reports {
            self.add(report);
        }
        self.unstored.truncate(MAX_DELIVERED_PER_BATCH);
    }

    fn add(&mut self, report: DeliveredReport) {
        if self.unstored.is_empty() {
            self.due_at = Instant::now() + MAX_STORE_DELAY;
        }
        self.unstored.push(report);
    }
}
