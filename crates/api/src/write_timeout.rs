//! A time limit for writing responses. After the time limit, the server closes the connection of a
//! caller that does not read the response.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Maximum time during which the caller reads no response data. After this time, the write fails.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// A stream whose writes fail after [`WRITE_TIMEOUT`] without progress.
pub(super) struct WriteTimeoutStream<S> {
    stream: S,
    /// Deadline of the current write. `None` while no write is waiting.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeoutStream<S> {
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            deadline: None,
        }
    }

    /// Returns `write_result`. If the write is pending and its deadline has passed, returns an
    /// error instead.
    fn apply_timeout<T>(
        &mut self,
        write_result: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if write_result.is_ready() {
            self.deadline = None;
            return write_result;
        }
        let deadline = self
            .deadline
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(WRITE_TIMEOUT)));
        deadline.as_mut().poll(context).map(|()| {
            let problem = format!("the caller read no data for {WRITE_TIMEOUT:?}");
            Err(io::Error::new(io::ErrorKind::TimedOut, problem))
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeoutStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.apply_timeout(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.apply_timeout(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.apply_timeout(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shutdown = Pin::new(&mut self.stream).poll_shutdown(context);
        self.apply_timeout(shutdown, context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn write_to_a_slow_reader_succeeds_and_write_to_a_stopped_reader_times_out() {
        use tokio::io::AsyncReadExt as _;
        let (server, mut caller) = tokio::io::duplex(4);
        let mut server = WriteTimeoutStream::new(server);
        let slow_reader = tokio::spawn(async move {
            for _ in 0..5 {
                tokio::time::sleep(WRITE_TIMEOUT / 2).await;
                caller.read_exact(&mut [0; 4]).await.unwrap();
            }
            caller
        });
        server.write_all(&[0; 20]).await.unwrap();
        let stalled_caller = slow_reader.await.unwrap();
        let error = server.write_all(&[0; 20]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(stalled_caller);
    }
}
