//! A server that accepts MQTT connections and discards everything that it receives.

use anyhow::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

const CONNACK: [u8; 4] = [0x20, 2, 0, 0];
const SUBACK: [u8; 5] = [0x90, 3, 0, 1, 1];

/// Starts the server and returns its address.
pub async fn listen() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                // The client waits for the responses one after the other, so it accepts both at once.
                let _ = stream.write_all(&[&CONNACK[..], &SUBACK].concat()).await;
                let mut buffer = vec![0; 64 * 1024];
                while let Ok(1..) = stream.read(&mut buffer).await {}
            });
        }
    });
    Ok(address)
}
