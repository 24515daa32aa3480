#!/usr/bin/env bash
# Makes the Secrets of this overlay, with a CA that exists only while this runs: `secrets.sh NAMESPACE`. For a cluster with
# cert-manager, let a Certificate make dataplane-tls instead, and copy its ca.crt. Run it again to replace all of them.
# Callers: trainer (everything) and metrics (reading). README of the access file: docs/operations.md, "Who may call".
set -euo pipefail
namespace=${1:?usage: secrets.sh NAMESPACE}
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
cd "$folder"

name="subjectAltName=DNS:dataplane-server-0.dataplane,DNS:dataplane-server-0.dataplane.$namespace.svc"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj "/CN=rl-dataplane CA" \
	-keyout ca.key -out ca.crt 2>/dev/null
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=dataplane-server" -keyout tls.key -out tls.csr 2>/dev/null
openssl x509 -req -days 365 -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile <(echo "$name") -out tls.crt 2>/dev/null

entry() { # NAME ROLE: a caller with a new token, which is left in NAME.token
	openssl rand -hex 32 | tr -d '\n' >"$1.token"
	printf '{"name": "%s", "tokens": ["sha256:%s"], "roles": {"%s": [""]}}' "$1" "$(sha256sum <"$1.token" | cut -d' ' -f1)" "$2"
}
printf '{"callers": [%s, %s]}\n' "$(entry trainer admin)" "$(entry metrics reader)" >access.json

secret() { kubectl -n "$namespace" create secret generic "$@" --dry-run=client -o yaml | kubectl apply -f -; }
secret dataplane-tls --from-file=tls.crt --from-file=tls.key --from-file=ca.crt
secret dataplane-access --from-file=access.json
secret dataplane-trainer --from-file=ca.crt --from-file=token=trainer.token
secret dataplane-metrics --from-file=ca.crt --from-file=token=metrics.token
