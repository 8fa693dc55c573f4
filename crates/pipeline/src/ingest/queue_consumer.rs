//! What the Kafka reader needs of a consumer. The fault simulation implements the same trait without
//! Kafka.

use std::future::Future;

use kafka::{Consumer, ConsumerEvent};

/// Consumes one topic as a member of a consumer group. [`Consumer`] describes the methods.
pub trait QueueConsumer: Send + 'static {
    /// Waits for the next event. Returns a rebalance before the messages that followed the
    /// rebalance. This function is cancel safe: if the future is dropped, no event is discarded.
    fn next(&mut self) -> impl Future<Output = ConsumerEvent> + Send;

    /// Marks all messages of the partition up to this offset as processed. The consumer commits the
    /// offset later.
    fn store_offset(&mut self, partition: i32, offset: i64);

    /// Delays the report that no progress is made, while messages wait for another topic.
    fn reset_stall_timer(&mut self) {}

    /// Reads a partition again from this offset. No message is returned before the new position is
    /// set.
    fn reread(&mut self, partition: i32, offset: i64);

    /// Pauses fetching from these partitions. The partitions stay assigned to this consumer.
    fn pause(&self, partitions: &[i32]);

    /// Resumes fetching from these partitions.
    fn resume(&self, partitions: &[i32]);

    /// Commits the stored offsets and leaves the consumer group.
    fn close(self) -> impl Future<Output = ()> + Send;
}

impl QueueConsumer for Consumer {
    fn next(&mut self) -> impl Future<Output = ConsumerEvent> + Send {
        self.next()
    }

    fn store_offset(&mut self, partition: i32, offset: i64) {
        self.store_offset(partition, offset);
    }

    fn reset_stall_timer(&mut self) {
        self.reset_stall_timer();
    }

    fn reread(&mut self, partition: i32, offset: i64) {
        self.reread(partition, offset);
    }

    fn pause(&self, partitions: &[i32]) {
        self.pause(partitions);
    }

    fn resume(&self, partitions: &[i32]) {
        self.resume(partitions);
    }

    async fn close(self) {
        // Closing blocks the thread. If the task is cancelled, the consumer is dropped and leaves the
        // group without a commit.
        let closing = tokio::task::spawn_blocking(move || self.close());
        let _ = closing.await;
    }
}
