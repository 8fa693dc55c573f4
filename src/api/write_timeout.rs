//! Sockets of callers that do not read their answers.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A caller that takes nothing of an answer for so long is cut off.
const TAKES_WITHIN: Duration = Duration::from_secs(30);

/// A stream whose other side must go on reading what is written.
pub(super) struct WriteTimeoutStream<S> {
    stream: S,
    /// Runs while a write waits.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeoutStream<S> {
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            deadline: None,
        }
    }

    /// Lets a write through; one that waits too long has failed.
    fn bound<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        let deadline = self
            .deadline
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(TAKES_WITHIN)));
        deadline.as_mut().poll(context).map(|()| {
            let problem = format!("the caller took nothing for {TAKES_WITHIN:?}");
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
        self.bound(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.bound(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.bound(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.bound(shut, context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_reads_slowly_is_served_and_who_does_not_read_is_cut_off() {
        use tokio::io::AsyncReadExt as _;
        let (ours, mut theirs) = tokio::io::duplex(4);
        let mut ours = WriteTimeoutStream::new(ours);
        let reading = tokio::spawn(async move {
            for _ in 0..5 {
                tokio::time::sleep(TAKES_WITHIN / 2).await;
                theirs.read_exact(&mut [0; 4]).await.unwrap();
            }
            theirs
        });
        ours.write_all(&[0; 20]).await.unwrap();
        let theirs = reading.await.unwrap();
        let cut_off = ours.write_all(&[0; 20]).await.unwrap_err();
        assert_eq!(cut_off.kind(), io::ErrorKind::TimedOut);
        drop(theirs);
    }
}
