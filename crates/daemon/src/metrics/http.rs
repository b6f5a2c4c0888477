//! As much HTTP/1.1 as a scrape needs: one request, one answer, and the connection is closed.

use httparse::{EMPTY_HEADER, Header, Request};

use super::text::Format;

/// The longest request.
pub(super) const MAX_REQUEST_BYTES: usize = 16 << 10;
const MAX_HEADERS: usize = 64;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// There is more to come.
    Incomplete,
    Metrics {
        format: Format,
        /// HEAD: without the text.
        only_head: bool,
    },
    Refused(Refusal),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    status: &'static str,
    text: &'static str,
}

const MALFORMED: Refusal = Refusal { status: "400 Bad Request", text: "not an HTTP/1 request; send GET /metrics" };
const NOT_FOUND: Refusal = Refusal { status: "404 Not Found", text: "there is nothing here; ask for GET /metrics" };
const OTHER_METHOD: Refusal = Refusal { status: "405 Method Not Allowed", text: "metrics are only read; ask for GET /metrics" };
const TOO_LONG: Refusal =
    Refusal { status: "431 Request Header Fields Too Large", text: "the request is too long; send fewer headers" };
pub(super) const NO_TEXT: Refusal = Refusal {
    status: "500 Internal Server Error",
    text: "the metrics cannot be written; this is a bug, please report it with the daemon's log",
};

pub(super) fn parse(bytes: &[u8]) -> Asked {
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let mut request = Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) if bytes.len() < MAX_REQUEST_BYTES => return Asked::Incomplete,
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => return Asked::Refused(TOO_LONG),
        Err(_) => return Asked::Refused(MALFORMED),
    }
    let path = request.path.unwrap_or("");
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    match (request.method, path) {
        (Some(method @ ("GET" | "HEAD")), "/metrics") => {
            Asked::Metrics { format: wanted(request.headers), only_head: method == "HEAD" }
        }
        (Some("GET" | "HEAD"), _) => Asked::Refused(NOT_FOUND),
        _ => Asked::Refused(OTHER_METHOD),
    }
}

/// OpenMetrics for all that understand it; weights are not compared, as Prometheus always prefers it.
fn wanted(headers: &[Header<'_>]) -> Format {
    let accepts = headers.iter().filter(|header| header.name.eq_ignore_ascii_case("accept"));
    let mut accepts = accepts.map(|header| String::from_utf8_lossy(header.value).to_ascii_lowercase());
    if accepts.any(|value| value.contains("application/openmetrics-text")) { Format::OpenMetrics } else { Format::Plain }
}

pub(super) fn answer(format: Format, text: &str, only_head: bool) -> Vec<u8> {
    let (kind, length) = (format.content_type(), text.len());
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    [head.as_bytes(), if only_head { b"" } else { text.as_bytes() }].concat()
}

pub(super) fn refusal(Refusal { status, text }: Refusal) -> Vec<u8> {
    let length = text.len() + 1;
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}\n"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(format: Format) -> Asked {
        Asked::Metrics { format, only_head: false }
    }

    #[test]
    fn requests_are_complete_or_not() {
        let whole = b"GET /metrics?x=1 HTTP/1.1\r\nHost: h\r\nACCEPT: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n\r\n";
        for end in 0..whole.len() {
            assert_eq!(parse(&whole[..end]), Asked::Incomplete, "{end}");
        }
        assert_eq!(parse(whole), metrics(Format::OpenMetrics));
        assert_eq!(parse(b"GET /metrics HTTP/1.0\r\n\r\n"), metrics(Format::Plain));
        let head = Asked::Metrics { format: Format::Plain, only_head: true };
        assert_eq!(parse(b"HEAD /metrics HTTP/1.1\r\nAccept: */*\r\n\r\n"), head);
    }

    #[test]
    fn everything_else_is_refused() {
        for (bytes, refusal) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], NOT_FOUND),
            (b"GET /metrics/x HTTP/1.1\r\n\r\n", NOT_FOUND),
            (b"POST /metrics HTTP/1.1\r\n\r\n", OTHER_METHOD),
            (b"{\"jsonrpc\":\"2.0\"}\n", MALFORMED),
            (b"\x16\x03\x01\x02\x00", MALFORMED),
            (format!("GET /metrics HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(MAX_HEADERS + 1)).as_bytes(), TOO_LONG),
            (format!("GET /metrics HTTP/1.1\r\nA: {}", "b".repeat(MAX_REQUEST_BYTES)).as_bytes(), TOO_LONG),
        ] {
            assert_eq!(parse(bytes), Asked::Refused(refusal), "{:?}", String::from_utf8_lossy(bytes));
        }
    }
}
