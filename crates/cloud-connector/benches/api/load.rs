//! Load generator for HTTP/1.1. It shares the CPU with the measured server, so it implements only
//! the part of HTTP that the benchmark needs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// An API caller with one persistent connection and at most one request in flight.
pub struct Caller {
    stream: TcpStream,
    /// Received bytes of the current response.
    response_bytes: Vec<u8>,
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
            response_bytes: Vec::new(),
        })
    }

    /// Sends an encoded request and returns the body of the response. Fails if the status of the
    /// response is not `expected_status`.
    pub async fn send_request(&mut self, request: &[u8], expected_status: &str) -> Result<&[u8]> {
        self.stream.write_all(request).await?;
        self.response_bytes.clear();
        let body_start = loop {
            ensure!(
                self.stream.read_buf(&mut self.response_bytes).await? > 0,
                "the server closed the connection"
            );
            let headers_end = self
                .response_bytes
                .windows(4)
                .position(|w| w == b"\r\n\r\n");
            if let Some(headers_end) = headers_end {
                break headers_end + 4;
            }
        };
        let head = std::str::from_utf8(&self.response_bytes[..body_start])?.to_ascii_lowercase();
        if !head.starts_with(&format!("http/1.1 {expected_status} ")) {
            let body = String::from_utf8_lossy(&self.response_bytes[body_start..]);
            bail!("expected status {expected_status}, got: {head} {body}");
        }
        let content_length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .context("the response has no content-length")?;
        let body_end = body_start + content_length.trim().parse::<usize>()?;
        while self.response_bytes.len() < body_end {
            let bytes_read = self.stream.read_buf(&mut self.response_bytes).await?;
            ensure!(bytes_read > 0, "the server closed the connection");
        }
        Ok(&self.response_bytes[body_start..body_end])
    }
}

/// Result of [`run_load`].
pub struct LoadResult {
    pub requests_per_second: f64,
    /// Latency of each request, in milliseconds.
    pub latencies_ms: Vec<f64>,
}

/// Runs `caller_count` callers in parallel for `duration`. Each caller passes a different number to
/// `build_request` for each request. `build_request` derives the client id from this number.
pub async fn run_load(
    base_url: &str,
    caller_count: usize,
    duration: Duration,
    build_request: impl Fn(usize) -> Vec<u8> + Send + Sync + 'static,
    expected_status: &'static str,
) -> Result<LoadResult> {
    let build_request = Arc::new(build_request);
    let mut tasks = Vec::new();
    let mut connected_callers = Vec::new();
    for _ in 0..caller_count {
        connected_callers.push(Caller::connect(base_url).await?);
    }
    let started_at = Instant::now();
    for (caller_index, mut caller) in connected_callers.into_iter().enumerate() {
        let build_request = build_request.clone();
        tasks.push(tokio::spawn(async move {
            let mut latencies_ms = Vec::new();
            // The number increases in large steps, so that consecutive requests read distant rows.
            let mut request_number = caller_index * 7919;
            while started_at.elapsed() < duration {
                request_number += 104_729;
                let request_started_at = Instant::now();
                caller
                    .send_request(&build_request(request_number), expected_status)
                    .await?;
                latencies_ms.push(request_started_at.elapsed().as_secs_f64() * 1e3);
            }
            Ok::<_, anyhow::Error>(latencies_ms)
        }));
    }
    let mut latencies_ms = Vec::new();
    for task in tasks {
        latencies_ms.extend(task.await??);
    }
    let requests_per_second = latencies_ms.len() as f64 / started_at.elapsed().as_secs_f64();
    Ok(LoadResult {
        requests_per_second,
        latencies_ms,
    })
}
