//! The smallest MQTT client that can be held to account: what a measurement uses on both sides must
//! cost next to nothing.

use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// Who may read everybody's messages, on the listener without TLS.
const SERVICE: Option<(&str, &str)> = Some(("cloud-connector", "cc-secret"));

pub struct Client {
    reading: BufReader<OwnedReadHalf>,
    writing: OwnedWriteHalf,
    topic: String,
}

impl Client {
    pub async fn connect(address: &str, name: &str) -> Result<Self> {
        Self::open(address, name, None).await
    }

    /// The service's own user, subscribed with QoS 1.
    pub async fn subscribe(address: &str, filter: &str) -> Result<Self> {
        let name = uuid::Uuid::new_v4().to_string();
        let mut client = Self::open(address, &name, SERVICE).await?;
        let mut body = vec![0, 1];
        push_text(&mut body, filter)?;
        body.push(1);
        client.writing.write_all(&packet(0x82, &body)).await?;
        let (kind, body) = client.read().await?;
        ensure!(kind == 9 && body.last() == Some(&1), "not subscribed");
        Ok(client)
    }

    /// Ends the session that the broker keeps for one of the service's users: it would go on gathering
    /// messages, and the broker would stall whenever it saves them.
    pub async fn end_session(port: u16, name: &str) -> Result<()> {
        let address = format!("127.0.0.1:{port}");
        Self::open(&address, name, SERVICE).await.map(drop)
    }

    async fn open(address: &str, name: &str, user: Option<(&str, &str)>) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (reading, writing) = stream.into_split();
        let mut client = Self {
            reading: BufReader::new(reading),
            writing,
            topic: format!("redhat/insights/{name}/control/out"),
        };
        // Version 3.1.1, clean session, a minute of keep-alive.
        let flags = if user.is_some() { 0xc2 } else { 0x02 };
        let mut body = b"\0\x04MQTT\x04".to_vec();
        body.extend([flags, 0, 60]);
        push_text(&mut body, name)?;
        if let Some((user, password)) = user {
            push_text(&mut body, user)?;
            push_text(&mut body, password)?;
        }
        client.writing.write_all(&packet(0x10, &body)).await?;
        let (kind, body) = client.read().await?;
        ensure!(kind == 2 && body.get(1) == Some(&0), "{name} is not let in");
        Ok(client)
    }

    pub async fn send(&mut self, id: u16, payload: &[u8]) -> Result<()> {
        let mut body = Vec::with_capacity(payload.len() + 80);
        push_text(&mut body, &self.topic)?;
        body.extend(id.to_be_bytes());
        body.extend(payload);
        Ok(self.writing.write_all(&packet(0x32, &body)).await?)
    }

    pub async fn acknowledged(&mut self) -> Result<()> {
        loop {
            let (kind, _) = self.read().await?;
            if kind == 4 {
                return Ok(());
            }
        }
    }

    /// With QoS 1; returns when it is acknowledged.
    pub async fn publish(&mut self, id: u16, payload: &[u8]) -> Result<()> {
        self.send(id, payload).await?;
        self.acknowledged().await
    }

    /// The next message, acknowledged.
    pub async fn message(&mut self) -> Result<(String, Vec<u8>)> {
        loop {
            let (kind, mut body) = self.read().await?;
            if kind != 3 {
                continue;
            }
            let length = usize::from(u16::from_be_bytes([body[0], body[1]]));
            let payload = body.split_off(2 + length + 2);
            let id = &body[2 + length..];
            self.writing.write_all(&packet(0x40, id)).await?;
            let topic = String::from_utf8(body[2..2 + length].to_vec())?;
            return Ok((topic, payload));
        }
    }

    async fn read(&mut self) -> Result<(u8, Vec<u8>)> {
        let first = self.reading.read_u8().await.context("hung up")?;
        let mut length = 0;
        for shift in [0, 7, 14, 21] {
            let byte = self.reading.read_u8().await?;
            length |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        let mut body = vec![0; length];
        self.reading.read_exact(&mut body).await?;
        Ok((first >> 4, body))
    }
}

fn push_text(body: &mut Vec<u8>, text: &str) -> Result<()> {
    body.extend(u16::try_from(text.len())?.to_be_bytes());
    body.extend(text.as_bytes());
    Ok(())
}

fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(body.len() + 5);
    bytes.push(first);
    let mut length = body.len();
    while length > 0x7f {
        bytes.push(0x80 | length.to_le_bytes()[0]);
        length >>= 7;
    }
    bytes.push(length.to_le_bytes()[0]);
    bytes.extend(body);
    bytes
}
