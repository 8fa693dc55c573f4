//! Faults and attacks. Nothing that was acknowledged is lost, every process recovers by itself, and
//! memory stays bounded.

mod broker_intake;
mod distributed_clock_skew;
mod distributed_floods;
mod distributed_memory;
mod distributed_slow_topic;
mod distributed_split_ingest;
mod distributed_standby;
mod distributed_topics;
mod logs;
mod maintenance;
mod postgres_faults;
mod postgres_maintenance;
mod rejected_rows;
mod rest_limits;
mod storage_faults;
