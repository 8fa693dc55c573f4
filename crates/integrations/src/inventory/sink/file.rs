//! Appends inventory messages to a local file, for deployments without Kafka.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Mutex;
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

    /// Writes the messages. A write continues after its deadline, so the next write starts after its
    /// end. Otherwise the lines of all these writes would be in memory while the disk does not respond.
    async fn write(&self, messages: Vec<InventoryMessage>) -> std::io::Result<()> {
        let mut file = self.file.clone().lock_owned().await;
        let mut lines = Vec::new();
        for message in messages {
            lines.extend_from_slice(&message.json);
            lines.push(b'\n');
        }
        let write = tokio::task::spawn_blocking(move || {
            let result = file.append(&lines);
            if result.is_err() {
                // The next write opens the file again, because the file may have been moved or
                // deleted.
                file.handle = None;
            }
            result
        });
        write.await.map_err(std::io::Error::other)?
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
        let message_count = messages.len();
        let is_written = match timeout_at(deadline, self.write(messages)).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::warn!(%error, "failed to write the inventory file");
                false
            }
            Err(_) => false,
        };
        let delivery_results = vec![is_written; message_count];
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

    /// Opening a named pipe for writing blocks until the pipe has a reader.
    #[tokio::test]
    async fn messages_are_not_written_late_if_an_earlier_write_has_not_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        let mkfifo = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(mkfifo.unwrap().success());
        let sink = FileSink::new(&path, 1000, 2);
        for content in ["a", "b", "c"] {
            let deadline = Instant::now() + std::time::Duration::from_millis(20);
            assert_eq!(sink.send(single_message(content), deadline).await, [false]);
        }
        let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(path));
        assert_eq!(read.await.unwrap().unwrap(), "a\n");
        let mut file = sink.file.lock().await;
        assert!(file.handle.take().is_none(), "a pipe cannot be synced");
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
