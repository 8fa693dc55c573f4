use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

const MAX_BYTES: usize = 30;
const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(30);

/// An output that blocks at each write until the test reads the text.
struct BlockingOutput(Sender<Vec<u8>>, Receiver<()>);

impl Write for BlockingOutput {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.send(text.to_vec()).unwrap();
        let _ = self.1.recv();
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns a queue, the receiver of each write, and the sender that ends a write.
fn start_queue() -> (OutputQueue, Receiver<Vec<u8>>, Sender<()>) {
    let (write_sender, writes) = channel();
    let (end_write, end_receiver) = channel();
    let output = BlockingOutput(write_sender, end_receiver);
    let report = |queue: &OutputQueue, count: u64| {
        queue.append_without_limit(format!("{count} dropped\n").as_bytes());
    };
    let queue = OutputQueue::start("test-output", MAX_BYTES, output, |_| {}, report);
    (queue, writes, end_write)
}

#[test]
fn lines_beyond_the_limit_are_dropped_and_their_number_is_reported_in_order() {
    let (queue, writes, end_write) = start_queue();
    assert!(queue.append(b"first\n"));
    assert_eq!(writes.recv_timeout(LONG).unwrap(), b"first\n");
    // The output blocks now. The queue accepts lines until it is full.
    assert!(queue.append(b"0123456789\n"));
    assert!(queue.append(b"0123456789\n"));
    assert!(!queue.append(b"0123456789\n"));
    assert!(!queue.append(b"0123456789\n"));
    assert!(queue.append(b"short\n"), "a short line still fits");
    for () in [(), (), ()] {
        end_write.send(()).unwrap();
    }
    let kept = writes.recv_timeout(LONG).unwrap();
    assert_eq!(kept, b"0123456789\n0123456789\nshort\n");
    assert_eq!(writes.recv_timeout(LONG).unwrap(), b"2 dropped\n");
    assert!(queue.flush(Instant::now() + LONG));
    assert!(queue.append(b"0123456789\n"), "the queue is empty again");
}

#[test]
fn a_line_that_is_larger_than_the_limit_is_dropped() {
    let (queue, _writes, _end_write) = start_queue();
    assert!(!queue.append(&[b'x'; MAX_BYTES + 1]));
}

#[test]
fn flush_waits_for_the_text_that_is_being_written_and_ends_at_the_deadline() {
    let (queue, writes, end_write) = start_queue();
    assert!(queue.flush(Instant::now()), "nothing to write");
    assert!(queue.append(b"line\n"));
    writes.recv_timeout(LONG).unwrap();
    assert!(!queue.flush(Instant::now() + SECOND / 20), "still writing");
    end_write.send(()).unwrap();
    assert!(queue.flush(Instant::now() + LONG));
}

#[test]
fn a_full_non_blocking_output_is_retried_and_a_closed_output_is_not() {
    struct Flaky(Vec<std::io::Result<usize>>, Vec<u8>);
    impl Write for Flaky {
        fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
            let count = self.0.remove(0)?;
            self.1.extend_from_slice(&text[..count]);
            Ok(count)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let results = vec![
        Ok(2),
        Err(ErrorKind::WouldBlock.into()),
        Err(ErrorKind::Interrupted.into()),
        Ok(3),
    ];
    let mut output = Flaky(results, Vec::new());
    write_all(&mut output, b"text\n").unwrap();
    assert_eq!(output.1, b"text\n");
    output.0 = vec![Err(ErrorKind::BrokenPipe.into())];
    assert_eq!(write_all(&mut output, b"text\n"), Err(&b"text\n"[..]));
}
