//! The WebSocket handshake: an HTTP request that changes the protocol of the connection.

use std::net::IpAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tungstenite::error::{Error, ProtocolError};
use tungstenite::handshake::machine::TryParse as _;
use tungstenite::handshake::server::{Request, Response, create_response, write_response};
use tungstenite::http::header::{
    HOST, HeaderValue, ORIGIN, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use tungstenite::http::{StatusCode, Uri};

use super::stream::WebSocketStream;
use crate::network_stream::NetworkStream;

/// Maximum size of the HTTP request.
const MAX_REQUEST_BYTES: usize = 8 * 1024;
/// Subprotocols for MQTT. `mqttv3.1` is the name that clients of MQTT 3.1 use.
const SUBPROTOCOLS: [&str; 2] = ["mqtt", "mqttv3.1"];

/// Rules for the requests on one listener.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct HandshakeRules<'a> {
    /// The accepted path. `None` accepts any path.
    pub path: Option<&'a str>,
    /// Whether the listener is for clients on this machine only.
    pub is_loopback_listener: bool,
}

/// The handshake failed.
#[derive(Debug)]
pub(in super::super) enum HandshakeError {
    /// The connection failed or was closed.
    Closed,
    /// The broker rejected the request. The client has received the reason.
    Rejected(String),
}

impl From<std::io::Error> for HandshakeError {
    fn from(_: std::io::Error) -> Self {
        Self::Closed
    }
}

/// An HTTP response that rejects the request.
struct HttpRejection {
    status: StatusCode,
    /// Text for the client, and for the log.
    problem: String,
}

impl HttpRejection {
    fn new(status: StatusCode, problem: impl Into<String>) -> Self {
        Self {
            status,
            problem: problem.into(),
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        // A client can tell from the two headers which protocol and version it must use.
        let upgrade = if self.status == StatusCode::UPGRADE_REQUIRED {
            format!("{UPGRADE}: websocket\r\n{SEC_WEBSOCKET_VERSION}: 13\r\n")
        } else {
            String::new()
        };
        let (status, problem) = (&self.status, &self.problem);
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\n\
             content-length: {}\r\nconnection: close\r\n{upgrade}\r\n{problem}\n",
            problem.len() + 1
        )
        .into_bytes()
    }
}

/// Performs the handshake. If the broker rejects the request, the client gets an HTTP error.
pub(in super::super) async fn accept(
    mut stream: NetworkStream,
    rules: HandshakeRules<'_>,
) -> Result<WebSocketStream<NetworkStream>, HandshakeError> {
    let response = match read_request(&mut stream).await? {
        Ok(request) => check_request(&request, rules),
        Err(rejection) => Err(rejection),
    };
    match response {
        Ok(response) => {
            let mut bytes = Vec::new();
            write_response(&mut bytes, &response).map_err(|_| HandshakeError::Closed)?;
            stream.write_all(&bytes).await?;
            stream.flush().await?;
            Ok(WebSocketStream::new(stream))
        }
        Err(rejection) => {
            stream.write_all(&rejection.to_bytes()).await?;
            stream.shutdown().await?;
            Err(HandshakeError::Rejected(rejection.problem))
        }
    }
}

/// Reads the request. The bytes after the request stay in the stream.
async fn read_request(
    stream: &mut NetworkStream,
) -> Result<Result<Request, HttpRejection>, HandshakeError> {
    let mut input = Vec::new();
    loop {
        let mut chunk = [0; 1024];
        let count = stream.read(&mut chunk).await?;
        if count == 0 {
            return Err(HandshakeError::Closed);
        }
        input.extend_from_slice(&chunk[..count]);
        match Request::try_parse(&input) {
            Ok(Some((request_len, request))) => {
                stream.unread(&input[request_len..]);
                return Ok(Ok(request));
            }
            Ok(None) if input.len() < MAX_REQUEST_BYTES => {}
            Ok(None) => {
                let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
                let problem = format!("the request is larger than {MAX_REQUEST_BYTES} bytes");
                return Ok(Err(HttpRejection::new(status, problem)));
            }
            Err(error) => return Ok(Err(invalid_request(&error))),
        }
    }
}

fn check_request(request: &Request, rules: HandshakeRules<'_>) -> Result<Response, HttpRejection> {
    let mut response = create_response(request).map_err(|error| invalid_request(&error))?;
    if rules.path.is_some_and(|path| path != request.uri().path()) {
        let problem = "no MQTT broker at this path; see the setting broker.websocket.path";
        return Err(HttpRejection::new(StatusCode::NOT_FOUND, problem));
    }
    check_origin(request, rules.is_loopback_listener)?;
    let Some(subprotocol) = requested_subprotocol(request) else {
        let problem = "the header Sec-WebSocket-Protocol must contain mqtt";
        return Err(HttpRejection::new(StatusCode::BAD_REQUEST, problem));
    };
    response.headers_mut().insert(
        SEC_WEBSOCKET_PROTOCOL,
        HeaderValue::from_static(subprotocol),
    );
    Ok(response)
}

/// Returns the first subprotocol in the request that the broker supports.
fn requested_subprotocol(request: &Request) -> Option<&'static str> {
    request
        .headers()
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .find_map(|name| {
            let name = name.trim();
            SUBPROTOCOLS.into_iter().find(|known| *known == name)
        })
}

/// Rejects the requests of web pages. A browser sends the host of the page in the header `Origin`.
///
/// Any web page can open a WebSocket connection from the browser of its visitor. Without this check,
/// such a page could use the listener of the visitor's machine, or the visitor's certificate.
fn check_origin(request: &Request, is_loopback_listener: bool) -> Result<(), HttpRejection> {
    let Some(origin) = request.headers().get(ORIGIN) else {
        return Ok(());
    };
    let origin_host = uri_host(origin);
    let is_same_host = origin_host.is_some() && origin_host == request_host(request);
    // The name of an attacker's page may resolve to a loopback address. Therefore the name must be
    // a name of this machine.
    let is_allowed =
        is_same_host && (!is_loopback_listener || origin_host.as_deref().is_some_and(is_loopback));
    if is_allowed {
        return Ok(());
    }
    let problem = "web pages of other hosts must not connect (header Origin)";
    Err(HttpRejection::new(StatusCode::FORBIDDEN, problem))
}

fn uri_host(uri: &HeaderValue) -> Option<String> {
    let uri: Uri = uri.to_str().ok()?.parse().ok()?;
    Some(uri.host()?.to_ascii_lowercase())
}

fn request_host(request: &Request) -> Option<String> {
    let authority = request.headers().get(HOST)?.to_str().ok()?;
    uri_host(&HeaderValue::from_str(&format!("ws://{authority}/")).ok()?)
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let address: Option<IpAddr> = address.parse().ok();
    host == "localhost" || address.is_some_and(|address| address.is_loopback())
}

fn invalid_request(error: &Error) -> HttpRejection {
    let status = match error {
        Error::Protocol(
            ProtocolError::MissingConnectionUpgradeHeader
            | ProtocolError::MissingUpgradeWebSocketHeader
            | ProtocolError::MissingSecWebSocketVersionHeader,
        ) => StatusCode::UPGRADE_REQUIRED,
        _ => StatusCode::BAD_REQUEST,
    };
    HttpRejection::new(status, format!("not a WebSocket request: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY_PATH: HandshakeRules<'_> = HandshakeRules {
        path: None,
        is_loopback_listener: true,
    };

    fn request(path: &str, headers: &[(&str, &str)]) -> Request {
        let headers = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"));
        let headers: String = headers.collect();
        let text = format!("GET {path} HTTP/1.1\r\n{headers}\r\n");
        Request::try_parse(text.as_bytes()).unwrap().unwrap().1
    }

    fn valid_headers(host: &'static str) -> Vec<(&'static str, &'static str)> {
        vec![
            ("Host", host),
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ]
    }

    fn check_with(
        added: &[(&'static str, &'static str)],
        rules: HandshakeRules<'_>,
    ) -> Result<Response, u16> {
        let mut headers = valid_headers("localhost:1883");
        headers.extend(added);
        check_request(&request("/mqtt?x=1", &headers), rules)
            .map_err(|rejection| rejection.status.as_u16())
    }

    #[test]
    fn supported_subprotocol_is_returned() {
        for (requested, accepted) in [
            ("mqtt", Ok("mqtt")),
            ("mqttv3.1", Ok("mqttv3.1")),
            ("wamp, mqttv3.1 ,mqtt", Ok("mqttv3.1")),
            ("wamp", Err(400)),
            ("", Err(400)),
        ] {
            let response = check_with(&[("Sec-WebSocket-Protocol", requested)], ANY_PATH);
            let subprotocol = response.as_ref().map(|response| {
                let value = &response.headers()[SEC_WEBSOCKET_PROTOCOL];
                value.to_str().unwrap()
            });
            assert_eq!(subprotocol, accepted.as_ref().copied(), "{requested}");
        }
        let response = check_with(&[("Sec-WebSocket-Protocol", "mqtt")], ANY_PATH).unwrap();
        assert_eq!(
            response.headers()["sec-websocket-accept"],
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
        assert_eq!(check_with(&[], ANY_PATH).unwrap_err(), 400);
    }

    #[test]
    fn path_is_checked_if_it_is_configured() {
        let protocol = [("Sec-WebSocket-Protocol", "mqtt")];
        for (path, expected) in [("/mqtt", None), ("/other", Some(404))] {
            let rules = HandshakeRules {
                path: Some(path),
                ..ANY_PATH
            };
            assert_eq!(check_with(&protocol, rules).err(), expected, "{path}");
        }
    }

    #[test]
    fn requests_of_web_pages_of_other_hosts_are_rejected() {
        for (host, origin, is_loopback_listener, is_accepted) in [
            // paho sends the host of the broker.
            ("localhost:1883", "https://localhost:1883", true, true),
            ("localhost", "https://localhost:1883", true, true),
            ("127.0.0.1:1883", "http://127.0.0.1:1883", true, true),
            ("[::1]:1883", "http://[::1]:1883", true, true),
            ("localhost:1883", "https://evil.example", true, false),
            ("localhost:1883", "null", true, false),
            ("localhost:1883", "file://", true, false),
            // The name evil.example resolves to a loopback address.
            ("evil.example:1883", "https://evil.example", true, false),
            ("broker.example", "https://Broker.example:443", false, true),
            ("broker.example", "https://evil.example", false, false),
        ] {
            let rules = HandshakeRules {
                is_loopback_listener,
                ..ANY_PATH
            };
            let mut headers = valid_headers(host);
            headers.extend([("Sec-WebSocket-Protocol", "mqtt"), ("Origin", origin)]);
            let result = check_request(&request("/", &headers), rules);
            let status = result.map_err(|rejection| rejection.status.as_u16());
            let expected = if is_accepted { None } else { Some(403) };
            assert_eq!(status.err(), expected, "{origin} at {host}");
        }
    }

    #[test]
    fn request_without_upgrade_gets_status_426_with_the_required_version() {
        let headers = [("Host", "localhost")];
        let Err(rejection) = check_request(&request("/", &headers), ANY_PATH) else {
            panic!("the request was accepted");
        };
        let response = String::from_utf8(rejection.to_bytes()).unwrap();
        assert!(
            response.starts_with("HTTP/1.1 426 Upgrade Required\r\n"),
            "{response}"
        );
        assert!(
            response.contains("\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\r\n"),
            "{response}"
        );
    }
}
