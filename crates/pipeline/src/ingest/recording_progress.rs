//! Stores how far this process has processed its Kafka partitions, for the liveness sweep.
//!
//! A task of its own stores the progress every few seconds, in a table that recording does not use. So the
//! batches neither wait for it nor contain it.

use std::time::Duration;

use tokio::time::Instant;

use domain::{Timestamp, clock};
use kafka::{ConsumerProgress, TopicProgress};
use service::{LogThrottle, TaskGroup};
use store::{LivenessRepository, QueueTopic, RecordingProgress, StoreError};

/// Interval at which the progress is stored.
const STORE_INTERVAL: Duration = Duration::from_secs(3);

/// Stores the progress of consumers until `tasks` is cancelled.
pub async fn store_recording_progress(
    consumers: Vec<(QueueTopic, ConsumerProgress)>,
    liveness: std::sync::Arc<dyn LivenessRepository>,
    tasks: TaskGroup,
) {
    static LOG_THROTTLE: LogThrottle = LogThrottle::new();
    let mut database_clock = None;
    loop {
        tokio::select! {
            () = tokio::time::sleep(STORE_INTERVAL) => {}
            () = tasks.cancelled() => return,
        }
        tokio::select! {
            result = store_once(&consumers, &*liveness, &mut database_clock) => {
                if let Err(error) = result
                    && LOG_THROTTLE.should_log()
                {
                    tracing::warn!(
                        %error,
                        "cannot store the progress of recording; until then, the liveness sweep ends no \
                         connection"
                    );
                }
            }
            () = tasks.cancelled() => return,
        }
    }
}

async fn store_once(
    consumers: &[(QueueTopic, ConsumerProgress)],
    liveness: &dyn LivenessRepository,
    database_clock: &mut Option<DatabaseClock>,
) -> Result<(), StoreError> {
    let clock = match database_clock {
        Some(clock) => *clock,
        None => DatabaseClock::new(liveness.current_time().await?),
    };
    let mut rows = Vec::new();
    for (queue, consumer) in consumers {
        match consumer.read().await {
            Ok(Some(topic)) => rows.extend(progress_rows(*queue, &topic, clock)),
            Ok(None) => {}
            // The health check of the consumer reports the problem.
            Err(error) => tracing::debug!(queue = queue.as_str(), error, "progress is unknown"),
        }
    }
    if rows.is_empty() {
        *database_clock = Some(clock);
        return Ok(());
    }
    let database_time = liveness.store_recording_progress(&rows).await?;
    *database_clock = Some(DatabaseClock::new(database_time));
    Ok(())
}

fn progress_rows(
    queue: QueueTopic,
    topic: &TopicProgress,
    clock: DatabaseClock,
) -> Vec<RecordingProgress> {
    let row = |(partition, processed_until): (&i32, &Instant)| RecordingProgress {
        queue,
        partition: *partition,
        partition_count: topic.partition_count,
        processed_until: clock.time_at(*processed_until),
    };
    topic.processed_until.iter().map(row).collect()
}

/// Converts times of this process to times of the database.
///
/// The clocks of hosts differ, and the sweep compares the progress with times of the database. The database
/// read its clock before this process received the time, so the result is too early by the time that the
/// response needed, and never too late.
#[derive(Debug, Clone, Copy)]
struct DatabaseClock {
    database_time: Timestamp,
    received_at: Instant,
}

impl DatabaseClock {
    fn new(database_time: Timestamp) -> Self {
        Self {
            database_time,
            received_at: Instant::now(),
        }
    }

    fn time_at(self, instant: Instant) -> Timestamp {
        if let Some(later) = instant.checked_duration_since(self.received_at) {
            return self
                .database_time
                .saturating_add(later)
                .unwrap_or(self.database_time);
        }
        let earlier = self.received_at.duration_since(instant);
        clock::saturating_sub(self.database_time, earlier)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn times_are_converted_to_times_of_the_database() {
        let database_time: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let clock = DatabaseClock::new(database_time);
        let start = Instant::now();
        tokio::time::advance(Duration::from_secs(5)).await;
        let topic = TopicProgress {
            partition_count: 2,
            processed_until: BTreeMap::from([(0, start), (1, Instant::now())]),
        };
        let rows = progress_rows(QueueTopic::Slow, &topic, clock);
        assert_eq!(rows[0].processed_until, database_time);
        let later: Timestamp = "2026-01-01T00:01:05Z".parse().unwrap();
        assert_eq!(rows[1].processed_until, later);
        assert_eq!((rows[1].partition, rows[1].partition_count), (1, 2));
        let newer_clock = DatabaseClock::new(later);
        assert_eq!(newer_clock.time_at(start), database_time);
    }
}
