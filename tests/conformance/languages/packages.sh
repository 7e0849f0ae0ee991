#!/usr/bin/env bash
# Install what the clients in other languages are built with: Debian's Go and Java packages, and Node's from npm.
#   packages.sh FOLDER     FOLDER/node_modules gets Node's
set -euo pipefail

folder=$1
packages=(golang-go golang-google-grpc-dev golang-google-protobuf-dev protoc-gen-go-1-5 protoc-gen-go-grpc
  default-jdk-headless libgrpc-java libnetty-java libprotobuf-java libguava-java libperfmark-java libgoogle-gson-java
  libgeronimo-annotation-1.3-spec-java protobuf-compiler protobuf-compiler-grpc-java-plugin)
missing=()
for package in "${packages[@]}"; do
  [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] || missing+=("$package")
done
# Another JDK does as well.
command -v javac >/dev/null && missing=("${missing[@]/default-jdk-headless/}")
if [[ -n "${missing[*]// /}" ]]; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  # shellcheck disable=SC2068
  apt-get install -y -qq --no-install-recommends ${missing[@]}
fi
if command -v npm >/dev/null && [[ ! -d "$folder/node_modules/@grpc/grpc-js" ]]; then
  npm install --silent --no-audit --no-fund --no-save --prefix "$folder" @grpc/grpc-js@1.14 @grpc/proto-loader@0.8
fi
