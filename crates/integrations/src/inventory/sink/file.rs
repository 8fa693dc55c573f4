//! Appends inventory messages to a local file, for deployments without Kafka.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use super::InventorySink;
use crate::inventory::message::InventoryMessage;
use crate::metrics;

/// Writes one message per line to a file. Rotates the file by size.
#[derive(Clone)]
pub struct FileSink {
    file: Arc<Mutex<RotatedFile>>,
}

struct RotatedFile {
    path: PathBuf,
    /// The open file. `None` before the first write and after a failed write.
    handle: Option<std::fs::File>,
    max_file_bytes: u64,
    max_rotated_files: u32,
}

impl FileSink {
    /// Creates a sink that appends to `path`. If a write would make the file larger than
    /// `max_file_bytes`, the sink first rotates the files: it renames `<path>.1` to `<path>.2` and
    /// so on, then `<path>` to `<path>.1`. The sink keeps at most `max_rotated_files` renamed
    /// files.
    #[must_use]
    pub fn new(path: &Path, max_file_bytes: u64, max_rotated_files: u32) -> Self {
        Self {
            file: Arc::new(Mutex::new(RotatedFile {
                path: path.to_owned(),
                handle: None,
                max_file_bytes,
                max_rotated_files,
            })),
        }
    }
}

impl RotatedFile {
    /// Appends the lines and syncs them to disk.
    fn append(&mut self, lines: &[u8]) -> std::io::Result<()> {
        if self.handle.is_none() {
            let mut options = std::fs::OpenOptions::new();
            let handle = options.create(true).append(true).open(&self.path)?;
            self.handle = Some(handle);
        }
        let Some(handle) = &mut self.handle else {
            return Ok(());
        };
        let current_bytes = handle.metadata()?.len();
        if current_bytes > 0 && current_bytes + lines.len() as u64 > self.max_file_bytes {
            self.rotate()?;
            return self.append(lines);
        }
        handle.write_all(lines)?;
        handle.sync_data()
    }

    fn rotate(&mut self) -> std::io::Result<()> {
        self.handle = None;
        let rotated_path = |n: u32| {
            let mut rotated_path = self.path.clone().into_os_string();
            rotated_path.push(format!(".{n}"));
            PathBuf::from(rotated_path)
        };
        for n in (1..self.max_rotated_files).rev() {
            if rotated_path(n).exists() {
                std::fs::rename(rotated_path(n), rotated_path(n + 1))?;
            }
        }
        if self.max_rotated_files == 0 {
            return std::fs::remove_file(&self.path);
        }
        std::fs::rename(&self.path, rotated_path(1))
    }
}

#[async_trait]
impl InventorySink for FileSink {
    async fn send(&self, messages: Vec<InventoryMessage>, deadline: Instant) -> Vec<bool> {
        let mut lines = Vec::new();
        for message in &messages {
            lines.extend_from_slice(&message.json);
            lines.push(b'\n');
        }
        let file = self.file.clone();
        let write = tokio::task::spawn_blocking(move || {
            let mut file = file.lock();
            let result = file.append(&lines);
            if result.is_err() {
                // The next write opens the file again, because the file may have been moved or
                // deleted.
                file.handle = None;
            }
            result
        });
        let is_written = match timeout_at(deadline, write).await {
            Ok(Ok(Ok(()))) => true,
            Ok(Ok(Err(error))) => {
                tracing::warn!(%error, "failed to write the inventory file");
                false
            }
            Ok(Err(_)) | Err(_) => false,
        };
        let delivery_results = vec![is_written; messages.len()];
        metrics::count_inventory_deliveries(&delivery_results);
        delivery_results
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deadline() -> Instant {
        Instant::now() + std::time::Duration::from_secs(9)
    }

    fn single_message(content: &str) -> Vec<InventoryMessage> {
        vec![InventoryMessage {
            kafka_key: "1".into(),
            json: content.as_bytes().to_vec(),
        }]
    }

    #[tokio::test]
    async fn file_has_one_message_per_line_and_is_rotated_by_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("inventory.ndjson");
        let sink = FileSink::new(&path, 10, 2);
        for content in ["aaaa", "bbbb", "cccc", "dddd", "eeee", "ffff", "gggg"] {
            let delivered = sink.send(single_message(content), deadline()).await;
            assert_eq!(delivered, [true]);
        }
        let read_file = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(read_file("inventory.ndjson"), "gggg\n");
        assert_eq!(read_file("inventory.ndjson.1"), "eeee\nffff\n");
        assert_eq!(read_file("inventory.ndjson.2"), "cccc\ndddd\n");
        assert!(!folder.path().join("inventory.ndjson.3").exists());
    }

    #[tokio::test]
    async fn message_of_a_failed_write_is_not_delivered_and_the_next_write_can_succeed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("missing/inventory.ndjson");
        let sink = FileSink::new(&path, 1000, 2);
        assert_eq!(sink.send(single_message("a"), deadline()).await, [false]);
        std::fs::create_dir(folder.path().join("missing")).unwrap();
        assert_eq!(sink.send(single_message("a"), deadline()).await, [true]);
    }
}
