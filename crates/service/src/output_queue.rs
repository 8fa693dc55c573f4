//! Output to a pipe or terminal that never blocks the caller.
//!
//! A reader that stops reading blocks every write to its pipe. Therefore a separate thread writes,
//! and callers only append to a queue. `tracing-appender` has such a queue, but it limits the number
//! of lines and not their size, and it does not log how many lines it dropped.

#[cfg(test)]
mod tests;

use std::io::{ErrorKind, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Pause before the next attempt if the output is non-blocking and full.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Text that waits for the thread that writes it. All clones refer to the same queue.
#[derive(Debug, Clone)]
pub(crate) struct OutputQueue {
    inner: Arc<QueueInner>,
}

#[derive(Debug)]
struct QueueInner {
    max_bytes: usize,
    count_dropped_lines: fn(u64),
    state: Mutex<QueueState>,
    /// Notified when text is appended to an empty queue.
    not_empty: Condvar,
    /// Notified when all text is written.
    all_written: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    text: Vec<u8>,
    /// Number of lines that were dropped since the thread last took the text.
    dropped_lines: u64,
    /// Whether the thread is writing text that it has taken out of the queue.
    is_writing: bool,
}

impl OutputQueue {
    /// Creates a queue that holds at most `max_bytes`, and starts the thread that writes to
    /// `output`. The thread runs until the process exits.
    ///
    /// `count_dropped_lines` is called at once for lines that are dropped. When the output accepts
    /// text again after the queue was full, the thread calls `report_dropped_lines` with the number
    /// of lines that were dropped meanwhile.
    ///
    /// # Panics
    /// If the system cannot create a thread.
    pub(crate) fn start(
        thread_name: &str,
        max_bytes: usize,
        mut output: impl Write + Send + 'static,
        count_dropped_lines: fn(u64),
        report_dropped_lines: fn(&Self, u64),
    ) -> Self {
        let queue = Self {
            inner: Arc::new(QueueInner {
                max_bytes,
                count_dropped_lines,
                state: Mutex::default(),
                not_empty: Condvar::new(),
                all_written: Condvar::new(),
            }),
        };
        let thread_queue = queue.clone();
        let thread = std::thread::Builder::new().name(thread_name.to_owned());
        let spawn_result = thread.spawn(move || {
            let mut text = Vec::new();
            loop {
                let dropped_lines = thread_queue.take_text(&mut text);
                // A write fails if the reader has exited. The lines are counted, but not reported,
                // because a line that reports them would be lost, too.
                if let Err(unwritten) = write_all(&mut output, &text) {
                    let lines = unwritten.split_inclusive(|byte| *byte == b'\n').count();
                    count_dropped_lines(lines as u64);
                }
                text.clear();
                if dropped_lines > 0 {
                    report_dropped_lines(&thread_queue, dropped_lines);
                }
            }
        });
        spawn_result.expect("a process that cannot create threads cannot start");
        queue
    }

    /// Appends `line`, which includes its line feed. Returns `false` and drops the line if the queue
    /// is full. Never blocks.
    pub(crate) fn append(&self, line: &[u8]) -> bool {
        let mut state = self.inner.state.lock();
        if state.text.len() + line.len() > self.inner.max_bytes {
            state.dropped_lines += 1;
            drop(state);
            (self.inner.count_dropped_lines)(1);
            return false;
        }
        self.append_to(&mut state, line);
        true
    }

    /// Appends `line` even if the queue is full. For single lines that must not be lost.
    pub(crate) fn append_without_limit(&self, line: &[u8]) {
        self.append_to(&mut self.inner.state.lock(), line);
    }

    fn append_to(&self, state: &mut QueueState, line: &[u8]) {
        if state.text.is_empty() {
            self.inner.not_empty.notify_one();
        }
        state.text.extend_from_slice(line);
    }

    /// Waits until all text is written, at most until `deadline`. Returns whether all text is
    /// written.
    pub(crate) fn flush(&self, deadline: Instant) -> bool {
        let mut state = self.inner.state.lock();
        while !state.text.is_empty() || state.is_writing {
            let wait_result = self.inner.all_written.wait_until(&mut state, deadline);
            if wait_result.timed_out() {
                return false;
            }
        }
        true
    }

    /// Waits for text and moves it to `text`, which must be empty. Returns the number of lines that
    /// were dropped after this text.
    fn take_text(&self, text: &mut Vec<u8>) -> u64 {
        let mut state = self.inner.state.lock();
        state.is_writing = false;
        while state.text.is_empty() {
            self.inner.all_written.notify_all();
            self.inner.not_empty.wait(&mut state);
        }
        state.is_writing = true;
        std::mem::swap(&mut state.text, text);
        std::mem::take(&mut state.dropped_lines)
    }
}

/// Writes all of `text`. On failure, returns the text that is not written. Unlike
/// [`Write::write_all`], waits if the output is non-blocking and full. Another process that uses the
/// same terminal can make it non-blocking.
fn write_all<'a>(output: &mut impl Write, mut text: &'a [u8]) -> Result<(), &'a [u8]> {
    while !text.is_empty() {
        match output.write(text) {
            Ok(0) => return Err(text),
            Ok(written) => text = &text[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(RETRY_INTERVAL);
            }
            Err(_) => return Err(text),
        }
    }
    Ok(())
}
