//! Decides after each chunk whether a run of a lookup job must stop.

use tenant::{MassLossCounter, TenantLookupOutcome};

use super::LookedUpRows;

/// Why a run of a lookup job stopped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StopReason {
    /// No more rows are due, or the run has processed `RunOptions::max_rows` rows.
    #[default]
    Done,
    /// At least half of the lookups of a chunk were unavailable.
    LookupUnavailable,
    /// The "not found" results would have cleared the tenants of too many clients.
    MassLoss,
}

/// Returns why the run must stop after a chunk. `Done` means that the run can continue.
///
/// If the counter detects a mass loss and `allow_mass_loss` is false, all clients must keep their
/// tenants. The function then replaces the outcome `NotFound` of clients that have a tenant by
/// `Unavailable`.
pub(super) fn stop_reason_after_chunk(
    looked_up_rows: &mut LookedUpRows,
    loss_counter: &mut MassLossCounter,
    allow_mass_loss: bool,
) -> StopReason {
    for (row, outcome) in looked_up_rows.iter() {
        if row.tenant.is_some() {
            loss_counter.record_lookup(outcome);
        }
    }
    if loss_counter.is_mass_loss() && !allow_mass_loss {
        tenant::metrics::count_suppressed_mass_loss();
        loss_counter.log_suppressed_mass_loss();
        for (row, outcome) in looked_up_rows.iter_mut() {
            if row.tenant.is_some() && *outcome == TenantLookupOutcome::NotFound {
                *outcome = TenantLookupOutcome::Unavailable;
            }
        }
        return StopReason::MassLoss;
    }
    let unavailable_lookups = looked_up_rows
        .iter()
        .filter(|(_, outcome)| *outcome == TenantLookupOutcome::Unavailable)
        .count();
    if unavailable_lookups * 2 >= looked_up_rows.len() {
        return StopReason::LookupUnavailable;
    }
    StopReason::Done
}
