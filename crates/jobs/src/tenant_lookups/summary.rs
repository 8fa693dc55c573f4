//! Counts of one run of a lookup job.

use domain::LookupStatus;

use super::stop_reason::StopReason;

/// Counts and stop reason of one run of a lookup job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunSummary {
    /// Number of clients that were looked up.
    pub looked_up_clients: u64,
    /// Number of clients whose lookup found an organization.
    pub found_clients: u64,
    /// Number of clients that definitely have no organization.
    pub not_found_clients: u64,
    /// Number of lookups for which the lookup service gave no usable response.
    pub unavailable_lookups: u64,
    /// Number of hosts whose report to inventory was delivered.
    pub delivered_reports: u64,
    /// Number of hosts whose report to inventory was not delivered.
    pub pending_reports: u64,
    /// Number of rows that changed after their claim. The results of these rows were discarded.
    pub conflicting_rows: u64,
    /// Why the run stopped.
    pub stop_reason: StopReason,
}

impl RunSummary {
    /// Returns whether lookups were unavailable, reports to inventory were not delivered, or the run
    /// stopped early.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        self.unavailable_lookups > 0
            || self.pending_reports > 0
            || self.stop_reason != StopReason::Done
    }

    pub(super) fn count_lookup(&mut self, status: LookupStatus) {
        match status {
            LookupStatus::Found => self.found_clients += 1,
            LookupStatus::NotFound => self.not_found_clients += 1,
            LookupStatus::Unavailable => self.unavailable_lookups += 1,
        }
    }
}

impl std::fmt::Display for RunSummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            looked_up_clients,
            found_clients,
            not_found_clients,
            unavailable_lookups,
            delivered_reports,
            pending_reports,
            conflicting_rows,
            stop_reason,
        } = self;
        write!(
            f,
            "{looked_up_clients} looked up: {found_clients} found, \
             {not_found_clients} not found, {unavailable_lookups} unavailable; \
             {delivered_reports} reported to inventory, {pending_reports} pending; \
             {conflicting_rows} skipped (row changed)"
        )?;
        match stop_reason {
            StopReason::Done => Ok(()),
            StopReason::LookupUnavailable => f.write_str(
                "; stopped early: the lookup service is unavailable (clients without a result \
                 keep their tenant and number of attempts)",
            ),
            StopReason::MassLoss => f.write_str(
                "; stopped early: mass tenant loss suppressed (clients keep their tenants; use \
                 --force to apply)",
            ),
        }
    }
}
