//! Load generator for HTTP/1.1. It implements only the necessary part of HTTP, because it shares
//! the CPU with the measured server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// An API caller with one persistent connection and at most one request in flight.
pub struct Caller {
    stream: TcpStream,
    response: Vec<u8>,
}

impl Caller {
    /// Connects to a base URL such as `http://127.0.0.1:8080`.
    pub async fn connect(base_url: &str) -> Result<Self> {
        let address = base_url
            .strip_prefix("http://")
            .context("the URL does not start with http://")?;
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            response: Vec::new(),
        })
    }

    /// Sends a request and returns the body of the response. Fails if the response has another
    /// status than `expected_status`.
    pub async fn request(&mut self, request: &[u8], expected_status: &str) -> Result<&[u8]> {
        self.stream.write_all(request).await?;
        self.response.clear();
        let body_start = loop {
            ensure!(
                self.stream.read_buf(&mut self.response).await? > 0,
                "the server closed the connection"
            );
            let end_of_headers = self.response.windows(4).position(|w| w == b"\r\n\r\n");
            if let Some(end_of_headers) = end_of_headers {
                break end_of_headers + 4;
            }
        };
        let head = std::str::from_utf8(&self.response[..body_start])?.to_ascii_lowercase();
        if !head.starts_with(&format!("http/1.1 {expected_status} ")) {
            let body = String::from_utf8_lossy(&self.response[body_start..]);
            bail!("expected status {expected_status}, got: {head} {body}");
        }
        let content_length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .context("the response has no content-length")?;
        let body_end = body_start + content_length.trim().parse::<usize>()?;
        while self.response.len() < body_end {
            let bytes_read = self.stream.read_buf(&mut self.response).await?;
            ensure!(bytes_read > 0, "the server closed the connection");
        }
        Ok(&self.response[body_start..body_end])
    }
}

/// Result of one run of [`run_load`].
pub struct LoadResult {
    pub requests_per_second: f64,
    /// Latency of each request.
    pub latencies_ms: Vec<f64>,
}

/// Runs this number of callers in parallel for `duration`. `build_request` receives a number that
/// is different for each request of a caller, and derives the client id from it.
pub async fn run_load(
    base_url: &str,
    callers: usize,
    duration: Duration,
    build_request: impl Fn(usize) -> Vec<u8> + Send + Sync + 'static,
    expected_status: &'static str,
) -> Result<LoadResult> {
    let build_request = Arc::new(build_request);
    let mut tasks = Vec::new();
    let mut connected_callers = Vec::new();
    for _ in 0..callers {
        connected_callers.push(Caller::connect(base_url).await?);
    }
    let started = Instant::now();
    for (caller_index, mut caller) in connected_callers.into_iter().enumerate() {
        let build_request = build_request.clone();
        tasks.push(tokio::spawn(async move {
            let mut latencies_ms = Vec::new();
            // The steps are large, so that consecutive requests read distant rows.
            let mut number = caller_index * 7919;
            while started.elapsed() < duration {
                number += 104_729;
                let request_started = Instant::now();
                caller
                    .request(&build_request(number), expected_status)
                    .await?;
                latencies_ms.push(request_started.elapsed().as_secs_f64() * 1e3);
            }
            Ok::<_, anyhow::Error>(latencies_ms)
        }));
    }
    let mut latencies_ms = Vec::new();
    for task in tasks {
        latencies_ms.extend(task.await??);
    }
    let requests_per_second = latencies_ms.len() as f64 / started.elapsed().as_secs_f64();
    Ok(LoadResult {
        requests_per_second,
        latencies_ms,
    })
}
