//! Reads the resident memory of a process.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::support::report::{Goal, Measurement};

/// Maximum resident memory of a process at any time.
const MAX_PEAK_MIB: f64 = 300.0;
/// Maximum resident memory of a process after [`SETTLE_TIME`].
const MAX_SETTLED_MIB: f64 = 150.0;
/// Time after an attack within which a process must return memory to the operating system.
const SETTLE_TIME: Duration = Duration::from_mins(1);
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A process whose memory is measured.
pub struct MeasuredProcess {
    pub name: &'static str,
    pub pid: i32,
}

/// Returns two measurements for each process: the peak since its start, and the memory that it
/// needs after the attack. Returns when all processes are below the limit, or after
/// [`SETTLE_TIME`].
pub async fn measure(attack: &str, processes: &[MeasuredProcess]) -> Result<Vec<Measurement>> {
    let mut measurements = Vec::new();
    for process in processes {
        measurements.push(Measurement {
            name: format!("{attack}: peak of {}", process.name),
            details: "VmHWM".to_owned(),
            value: memory_mib(process.pid, "VmHWM:")?,
            unit: "MiB",
            goal: Goal::AtMost(MAX_PEAK_MIB),
        });
    }
    let attack_ended_at = Instant::now();
    loop {
        let mut settled = Vec::new();
        for process in processes {
            settled.push(memory_mib(process.pid, "VmRSS:")?);
        }
        let seconds = attack_ended_at.elapsed().as_secs();
        let is_settled = settled.iter().all(|mib| *mib <= MAX_SETTLED_MIB);
        if is_settled || attack_ended_at.elapsed() >= SETTLE_TIME {
            for (process, value) in processes.iter().zip(settled) {
                measurements.push(Measurement {
                    name: format!("{attack}: {} afterward", process.name),
                    details: format!("VmRSS after {seconds} s"),
                    value,
                    unit: "MiB",
                    goal: Goal::AtMost(MAX_SETTLED_MIB),
                });
            }
            return Ok(measurements);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Reads a memory field of `/proc/<pid>/status`. Returns the value in MiB.
fn memory_mib(pid: i32, field: &str) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|line| line.split_whitespace().next());
    let kib = kib.with_context(|| format!("/proc/{pid}/status has no {field}"))?;
    Ok(kib.parse::<f64>()? / 1024.0)
}
