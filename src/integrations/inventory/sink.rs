//! Where announcements go: into inventory's topic, or into a file.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use super::message::InventoryMessage;
use crate::kafka::Producer;
use crate::telemetry::metrics;

/// A way to inventory.
#[async_trait]
pub trait InventorySink: Send + Sync + 'static {
    /// Sends announcements, and says of each whether it was delivered by the deadline. One that was
    /// not may still arrive: whoever hears of a host twice is none the worse for it.
    async fn send(&self, announcements: Vec<InventoryMessage>, deadline: Instant) -> Vec<bool>;
}

/// Inventory's topic in Kafka.
pub struct KafkaSink {
    producer: Producer,
    name: String,
}

impl KafkaSink {
    /// Sends with this producer to that topic.
    #[must_use]
    pub fn new(producer: Producer, name: String) -> Self {
        Self { producer, name }
    }

    async fn send_one(&self, announcement: &InventoryMessage) -> bool {
        let InventoryMessage { key, value } = announcement;
        let sent = match self.producer.send(&self.name, key, value, &[]).await {
            Ok(sent) => sent.durable().await,
            Err(error) => Err(error),
        };
        if let Err(error) = &sent {
            tracing::debug!(%error, "inventory's topic does not take a host");
        }
        sent.is_ok()
    }
}

#[async_trait]
impl InventorySink for KafkaSink {
    async fn send(&self, announcements: Vec<InventoryMessage>, deadline: Instant) -> Vec<bool> {
        let sending = announcements.iter().map(|announcement| async move {
            let sent = timeout_at(deadline, self.send_one(announcement)).await;
            sent.unwrap_or(false)
        });
        let delivered = join_all(sending).await;
        metrics::announced(&delivered);
        delivered
    }
}

/// A file, a line an announcement; turned over when it has grown.
#[derive(Clone)]
pub struct FileSink {
    inner: Arc<Mutex<Open>>,
}

struct Open {
    path: PathBuf,
    file: Option<std::fs::File>,
    turn_at: u64,
    kept: u32,
}

impl FileSink {
    /// Appends to this file; when it is larger than `turn_at` it becomes `….1`, that one `….2`, and
    /// so on, `kept` of them.
    #[must_use]
    pub fn new(path: &Path, turn_at: u64, kept: u32) -> Self {
        Self {
            inner: Arc::new(Mutex::new(Open {
                path: path.to_owned(),
                file: None,
                turn_at,
                kept,
            })),
        }
    }
}

impl Open {
    /// Durable when it returns.
    fn append(&mut self, lines: &[u8]) -> std::io::Result<()> {
        if self.file.is_none() {
            let mut options = std::fs::OpenOptions::new();
            let file = options.create(true).append(true).open(&self.path)?;
            self.file = Some(file);
        }
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let before = file.metadata()?.len();
        if before > 0 && before + lines.len() as u64 > self.turn_at {
            self.rotate()?;
            return self.append(lines);
        }
        file.write_all(lines)?;
        file.sync_data()
    }

    fn rotate(&mut self) -> std::io::Result<()> {
        self.file = None;
        let numbered = |n: u32| {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".{n}"));
            PathBuf::from(name)
        };
        for n in (1..self.kept).rev() {
            if numbered(n).exists() {
                std::fs::rename(numbered(n), numbered(n + 1))?;
            }
        }
        if self.kept == 0 {
            return std::fs::remove_file(&self.path);
        }
        std::fs::rename(&self.path, numbered(1))
    }
}

#[async_trait]
impl InventorySink for FileSink {
    async fn send(&self, announcements: Vec<InventoryMessage>, deadline: Instant) -> Vec<bool> {
        let count = announcements.len();
        let mut lines = Vec::new();
        for announcement in &announcements {
            lines.extend_from_slice(&announcement.value);
            lines.push(b'\n');
        }
        let inner = self.inner.clone();
        let writing = tokio::task::spawn_blocking(move || {
            let mut open = inner.lock();
            let done = open.append(&lines);
            if done.is_err() {
                // Opened anew the next time: it may have been moved away.
                open.file = None;
            }
            done
        });
        let written = match timeout_at(deadline, writing).await {
            Ok(Ok(Ok(()))) => true,
            Ok(Ok(Err(error))) => {
                tracing::warn!(%error, "the inventory file cannot be written; tried again later");
                false
            }
            Ok(Err(_)) | Err(_) => false,
        };
        let delivered = vec![written; count];
        metrics::announced(&delivered);
        delivered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + std::time::Duration::from_secs(9)
    }

    fn one(text: &str) -> Vec<InventoryMessage> {
        vec![InventoryMessage {
            key: "1".into(),
            value: text.as_bytes().to_vec(),
        }]
    }

    #[tokio::test]
    async fn a_file_has_a_line_each_and_is_turned_over_when_it_has_grown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("inventory.ndjson");
        let lines = FileSink::new(&path, 10, 2);
        for text in ["aaaa", "bbbb", "cccc", "dddd", "eeee", "ffff", "gggg"] {
            let sent = lines.send(one(text), soon()).await;
            assert_eq!(sent, [true]);
        }
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(read("inventory.ndjson"), "gggg\n");
        assert_eq!(read("inventory.ndjson.1"), "eeee\nffff\n");
        assert_eq!(read("inventory.ndjson.2"), "cccc\ndddd\n");
        assert!(!folder.path().join("inventory.ndjson.3").exists());
    }

    #[tokio::test]
    async fn what_cannot_be_written_is_not_delivered_and_can_be_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("missing/inventory.ndjson");
        let lines = FileSink::new(&path, 1000, 2);
        assert_eq!(lines.send(one("a"), soon()).await, [false]);
        std::fs::create_dir(folder.path().join("missing")).unwrap();
        assert_eq!(lines.send(one("a"), soon()).await, [true]);
    }
}
