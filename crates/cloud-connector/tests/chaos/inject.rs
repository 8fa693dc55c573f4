//! Injects faults into the processes and services of a deployment.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::deployment::ChaosDeployment;
use crate::faults::{Fault, ServiceKind};
use crate::postgres_faults::{DroppedPackets, FrozenPostgres};
use crate::topics;
use test_support::ClockOffset;

impl ChaosDeployment {
    /// Injects a fault, and waits until its cause is over. For a process, this is the time before
    /// its start. Returns that time after the process or service has started again.
    pub async fn inject(&self, fault: Fault) -> Result<Instant, String> {
        match fault {
            Fault::Kill {
                process_index,
                downtime,
            } => {
                let mut process = self.processes[process_index].lock().await;
                process.kill().await?;
                sleep(downtime).await;
                let fault_end = Instant::now();
                process.start().await?;
                Ok(fault_end)
            }
            Fault::Pause {
                process_index,
                duration,
            } => {
                let mut process = self.processes[process_index].lock().await;
                process.pause(duration).await?;
                Ok(Instant::now())
            }
            Fault::Restart { process_index } => self.restart(process_index, None).await,
            Fault::SkewClock {
                process_index,
                seconds,
            } => {
                let clock = ClockOffset::from_seconds(seconds);
                self.restart(process_index, Some(clock)).await
            }
            Fault::RestartService {
                service,
                with_sigkill,
                downtime,
            } => self.restart_service(service, with_sigkill, downtime).await,
            Fault::FreezePostgres { duration } => {
                let _lock = self.lock_service(ServiceKind::Postgres).await;
                let frozen = FrozenPostgres::freeze(self.service(ServiceKind::Postgres))?;
                sleep(duration).await;
                drop(frozen);
                Ok(Instant::now())
            }
            Fault::DropPostgresPackets { duration } => {
                let _lock = self.lock_service(ServiceKind::Postgres).await;
                let port = self.service(ServiceKind::Postgres).port;
                let dropped_packets = DroppedPackets::drop_packets(port)?;
                sleep(duration).await;
                drop(dropped_packets);
                Ok(Instant::now())
            }
            Fault::FillDisk { duration } => self.fill_disk(duration).await,
            Fault::RecreateTopics { downtime } => self.recreate_topics(downtime).await,
        }
    }

    async fn restart(
        &self,
        process_index: usize,
        new_clock: Option<ClockOffset>,
    ) -> Result<Instant, String> {
        let mut process = self.processes[process_index].lock().await;
        process.stop().await?;
        process.clock_offset = new_clock.unwrap_or(process.clock_offset);
        let fault_end = Instant::now();
        process.start().await?;
        Ok(fault_end)
    }

    async fn restart_service(
        &self,
        kind: ServiceKind,
        with_sigkill: bool,
        downtime: Duration,
    ) -> Result<Instant, String> {
        let _lock = self.lock_service(kind).await;
        let service = self.service(kind);
        if with_sigkill {
            service.kill().await;
        } else {
            service.stop().await;
        }
        sleep(downtime).await;
        let fault_end = Instant::now();
        service.start_process().await;
        Ok(fault_end)
    }

    async fn fill_disk(&self, duration: Duration) -> Result<Instant, String> {
        let data_disk = self.data_disk.as_ref();
        let data_disk = data_disk.expect("a run with this fault has a data disk");
        // A process cannot start without disk space. Therefore the process must not be killed now.
        let mut process = self.processes[0].lock().await;
        let filler = data_disk.fill()?;
        sleep(duration).await;
        drop(filler);
        process.check_running()?;
        Ok(Instant::now())
    }

    /// Creates the topics again after the downtime. The caller has deleted the topics.
    async fn recreate_topics(&self, downtime: Duration) -> Result<Instant, String> {
        let _lock = self.lock_service(ServiceKind::Kafka).await;
        sleep(downtime).await;
        let cluster = self
            .cluster()
            .expect("only the distributed mode has topics");
        topics::create_topics(cluster).await?;
        Ok(Instant::now())
    }
}
