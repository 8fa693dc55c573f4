//! Callers: each keeps one connection and has one request under way. No more than HTTP needs, so that
//! the processor's time goes to the server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// One caller's connection.
pub struct Caller {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Caller {
    /// `base` as in `http://127.0.0.1:8080`.
    pub async fn connect(base: &str) -> Result<Self> {
        let address = base.strip_prefix("http://").context("no http://")?;
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            read: Vec::new(),
        })
    }

    /// Sends a request and reads its answer, which must have this status. The body.
    pub async fn ask(&mut self, request: &[u8], status: &str) -> Result<&[u8]> {
        self.stream.write_all(request).await?;
        self.read.clear();
        let head = loop {
            ensure!(
                self.stream.read_buf(&mut self.read).await? > 0,
                "the server closed"
            );
            let end = self.read.windows(4).position(|four| four == b"\r\n\r\n");
            if let Some(end) = end {
                break end + 4;
            }
        };
        let text = std::str::from_utf8(&self.read[..head])?.to_ascii_lowercase();
        if !text.starts_with(&format!("http/1.1 {status} ")) {
            bail!("{text} {}", String::from_utf8_lossy(&self.read[head..]));
        }
        let length = text
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .context("no content-length")?;
        let whole = head + length.trim().parse::<usize>()?;
        while self.read.len() < whole {
            let read = self.stream.read_buf(&mut self.read).await?;
            ensure!(read > 0, "the server closed");
        }
        Ok(&self.read[head..whole])
    }
}

/// What a round came to.
pub struct Round {
    /// Requests a second.
    pub rate: f64,
    /// In milliseconds, each.
    pub took: Vec<f64>,
}

/// So many callers at once, for so long.
pub async fn round(
    base: &str,
    callers: usize,
    lasts: Duration,
    request: impl Fn(usize) -> Vec<u8> + Send + Sync + 'static,
    status: &'static str,
) -> Result<Round> {
    let request = Arc::new(request);
    let mut tasks = Vec::new();
    let mut connected = Vec::new();
    for _ in 0..callers {
        connected.push(Caller::connect(base).await?);
    }
    let started = Instant::now();
    for (number, mut caller) in connected.into_iter().enumerate() {
        let request = request.clone();
        tasks.push(tokio::spawn(async move {
            let mut took = Vec::new();
            // Far from each other, and never the same twice in a row.
            let mut next = number * 7919;
            while started.elapsed() < lasts {
                next += 104_729;
                let asked = Instant::now();
                caller.ask(&request(next), status).await?;
                took.push(asked.elapsed().as_secs_f64() * 1e3);
            }
            Ok::<_, anyhow::Error>(took)
        }));
    }
    let mut took = Vec::new();
    for task in tasks {
        took.extend(task.await??);
    }
    let rate = took.len() as f64 / started.elapsed().as_secs_f64();
    Ok(Round { rate, took })
}
