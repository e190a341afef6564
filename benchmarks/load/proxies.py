"""The proxies in C: HAProxy, bare and doing the Edge's work, and nginx. Both from the system's packages."""

from __future__ import annotations

import os
import re
import shutil
from functools import partial
from pathlib import Path

from benchmarks.load.subjects import (
    LINE,
    SLOTS,
    SUBJECT_CORE,
    Absent,
    Subject,
    Target,
    first_line,
    free_port,
    is_listening,
    ready,
    start,
)

HAPROXY_CONFIG = """\
global
  nbthread 1
  maxconn 8000
{log_global}
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  timeout queue 30s
  option http-no-delay
{log_defaults}
frontend wide
  bind 127.0.0.1:{port} backlog 4096
{work}
  default_backend wide
frontend narrow
  bind 127.0.0.1:{narrow} backlog 4096
{work}
  http-request deny deny_status 429 if {{ queue(narrow) ge {line} }}
  default_backend narrow
backend wide
  option http-keep-alive
  http-reuse always
  server upstream 127.0.0.1:{upstream} maxconn 8000
backend narrow
  option abortonclose
  option http-keep-alive
  http-reuse always
  server upstream 127.0.0.1:{upstream} maxconn {slots}
"""

# The same work as the Edge does for a request: a log line, a request id, a hash of the token, two answer headers.
SAME_WORK = """\
  unique-id-format %{+X}o\\ %ci:%cp_%fi:%fp_%Ts_%rt:%pid
  unique-id-header x-request-id
  http-request set-var(txn.token) req.hdr(authorization),sha2(256),hex
  http-response set-header x-request-id %[unique-id]
  http-response set-header x-iop-provider upstream
"""

# One worker; buffering is off, as everybody sets it for streams of events. Requests above max_conns are refused at
# once: the free nginx has no line.
NGINX_CONFIG = """\
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/nginx.error.log;
worker_rlimit_nofile 16000;
events {{ worker_connections 8000; }}
http {{
  access_log {folder}/nginx.access.log combined buffer=32k;
  client_body_temp_path {folder}/nginx-body;
  proxy_temp_path {folder}/nginx-proxy;
  fastcgi_temp_path {folder}/nginx-fastcgi;
  uwsgi_temp_path {folder}/nginx-uwsgi;
  scgi_temp_path {folder}/nginx-scgi;
  client_max_body_size 32m;
  client_body_buffer_size 2m;
  keepalive_requests 1000000000;
  proxy_http_version 1.1;
  proxy_set_header Connection "";
  proxy_buffering off;
  proxy_next_upstream off;
  upstream wide {{ server 127.0.0.1:{upstream}; keepalive 1024; keepalive_requests 1000000000; }}
  upstream narrow {{
    zone narrow 64k;
    server 127.0.0.1:{upstream} max_conns={slots} max_fails=0;
    keepalive 8; keepalive_requests 1000000000;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{ proxy_pass http://wide; }}
  }}
  server {{
    listen 127.0.0.1:{narrow} backlog=4096;
    location / {{ proxy_pass http://narrow; }}
  }}
}}
"""


def find(program: str) -> str:
    """Where a program of the system is; raise Absent."""
    binary = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if binary is None:
        raise Absent(f"no {program} here (Debian: apt-get install {program})")
    return binary


def start_haproxy(folder: Path, upstream: int, same_work: bool) -> Subject:
    """HAProxy on one thread, bare or doing the Edge's work."""
    binary = find("haproxy")
    name = "haproxy-same-work" if same_work else "haproxy-bare"
    port, narrow = free_port(), free_port()
    config, log = folder / f"{name}.cfg", folder / f"{name}.log"
    config.write_text(
        HAPROXY_CONFIG.format(
            port=port,
            narrow=narrow,
            upstream=upstream,
            slots=SLOTS,
            line=LINE,
            log_global=f"  log {folder}/log.sock local0 info" if same_work else "",
            log_defaults="  log global\n  option httplog" if same_work else "",
            work=SAME_WORK if same_work else "",
        )
    )
    version = re.findall(r"\d+\.\d+\.\d+", first_line([binary, "-v"]))[0]
    process = start([binary, "-db", "-f", str(config)], SUBJECT_CORE, log)
    subject = Subject(
        name,
        Target(port, "served"),
        Target(narrow, "served"),
        has_line=True,
        refusal=429,
        processes={"gateway": process},
        version=version,
    )
    ready(subject, partial(is_listening, port), log)
    return subject


def start_nginx(folder: Path, upstream: int) -> Subject:
    """Nginx with one worker and an access log."""
    binary = find("nginx")
    port, narrow = free_port(), free_port()
    config, log = folder / "nginx.conf", folder / "nginx.log"
    text = NGINX_CONFIG.format(port=port, narrow=narrow, upstream=upstream, slots=SLOTS, folder=folder)
    config.write_text(f"user root;\n{text}" if os.geteuid() == 0 else text)  # its own user could not write here
    version = first_line([binary, "-v"]).rpartition("/")[2]
    command = [binary, "-p", str(folder), "-c", str(config), "-e", str(folder / "nginx.error.log")]
    process = start(command, SUBJECT_CORE, log)
    subject = Subject(
        "nginx",
        Target(port, "served"),
        Target(narrow, "served"),
        refusal=502,
        processes={"gateway": process},
        version=version,
        note="no line: refuses what does not fit",
    )
    ready(subject, partial(is_listening, port), log)
    return subject
